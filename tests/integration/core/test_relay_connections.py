"""Connections that forward messages between workers: tokens, releases, and reclaimed messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tuplewire.session.ledger import Settled
from tuplewire.session.send_events import SendEvents
from tuplewire.values.batch import TaskMessageBatch
from tuplewire.values.group import TaskGroup
from tuplewire.values.message import TaskMessage
from tuplewire_service.messaging.base import ConnectionStatus, IContext
from tuplewire_service.messaging.local import LocalContext
from tuplewire_service.messaging.streamed_transport import StreamedClient, StreamedContext
from tuplewire_service.testing.harness import (
    HOST,
    TOPOLOGY,
    UNKNOWN_TASK,
    Recorder,
    TransportHarness,
    assert_ledger,
    eventually,
)


def forwarder(context: IContext, port: int) -> tuple[StreamedClient, list[Settled], list[Settled]]:
    """Return a worker's connection, and the lists to which it adds settled and released messages."""
    assert isinstance(context, StreamedContext)
    settled: list[Settled] = []
    released: list[Settled] = []
    events = SendEvents(settled=settled.extend, released=released.extend)
    return context.connect(TOPOLOGY, HOST, port, events=events), settled, released


def offer(client: StreamedClient, groups: Sequence[TaskGroup], token: Any) -> bool:
    """Offer messages with a token on the event loop, as a worker does."""
    return client.end.thread.call(lambda: client.end.buffer.offer(groups, token))


def taken_back(client: StreamedClient, timeout: float) -> list[tuple[TaskGroup, Any]]:
    """Close a connection, and return its pending messages."""
    return client.end.thread.run(client.end.take_back(timeout))


class TestRelayConnections(TransportHarness):
    """Tests on the local transport: all transports share these connections."""

    def make_context(self) -> IContext:
        return LocalContext()

    def test_the_token_comes_back_when_messages_settle(self) -> None:
        """A relay's token is returned for acknowledged and for refused messages."""
        with self.context() as context:
            client, settled, released = forwarder(context, context.bind(TOPOLOGY, 0, Recorder()).port)
            client.end.receipts.watch([1])
            batch = [TaskMessage(1, b"a"), TaskMessage(UNKNOWN_TASK, b"b")]
            assert offer(client, TaskMessageBatch(batch).groups, "token")
            for told in (settled, released):
                eventually(lambda told=told: sum(each.messages for each in told) == 2)  # type: ignore[misc]
                assert {each.token for each in told} == {"token"}
                assert {each.task: each.dropped for each in told} == {1: None, UNKNOWN_TASK: "unknown_task"}

    def test_all_is_released_once_everything_is_released(self) -> None:
        """all_released() is False while the receiver has messages of a task; releases are reported."""
        recorder = Recorder([1])
        with self.context() as context:
            client, _, released = forwarder(context, context.bind(TOPOLOGY, 0, recorder).port)
            end = client.end
            offer(client, [TaskGroup.of(1, [b"a", b"b"]), TaskGroup.of(2, [b"c"])], "token")
            eventually(lambda: len(recorder.seen()) == 3)
            end.receipts.watch([1, 2])

            def all_released(task: int) -> bool:
                return end.thread.call(lambda: end.window.all_released(task))

            eventually(lambda: all_released(2))
            assert not all_released(1)
            recorder.release()
            eventually(lambda: all_released(1))
            eventually(lambda: sum(each.messages for each in released if each.task == 1) == 2)

    def test_messages_can_be_taken_back(self) -> None:
        """Messages that no server has accepted are returned in order, and are removed from the ledger."""
        with self.context() as context:
            client, _, _ = forwarder(context, self.unused_port())
            for number in range(3):
                offer(client, [TaskGroup.of(1, [b"%d" % number])], number)
            left = taken_back(client, 0.1)
            assert [(group.payloads(), token) for group, token in left] == [
                ([b"%d" % n], n) for n in range(3)
            ]
            assert taken_back(client, 0.1) == []
            assert_ledger(client, 0)

    def test_nothing_is_written_after_writing_is_stopped(self) -> None:
        """A server that starts later receives nothing, and reclaimed messages are not marked as copies."""
        recorder = Recorder()
        with self.context() as context:
            port = self.unused_port()
            client, _, _ = forwarder(context, port)
            offer(client, [TaskGroup.of(1, [b"a"])], "token")
            client.end.writes = False
            context.bind(TOPOLOGY, port, recorder)
            eventually(lambda: client.status is ConnectionStatus.READY, timeout=20)
            left = taken_back(client, 0.2)
            assert [(group.payloads(), group.redelivered) for group, _ in left] == [([b"a"], False)]
            assert recorder.seen() == []
