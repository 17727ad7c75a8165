"""The local transport: senders and tasks have state only while they are in use, and can be stopped."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from helpers.ports import free_port

from tuplewire.connection.memory_stream import memory_servers
from tuplewire.errors import FlushTimeoutError
from tuplewire.session.send_events import SendEvents
from tuplewire.values.group import TaskGroup
from tuplewire_service.messaging import receiving_end
from tuplewire_service.messaging.base import ConnectionStatus, IConnectionCallback, ReceivedBatch
from tuplewire_service.messaging.local import LocalContext
from tuplewire_service.messaging.streamed_transport import StreamedServer
from tuplewire_service.testing import eventually
from tuplewire_service.testing.harness import TOPOLOGY, Recorder

SENDERS = 50
WINDOW = 1000


class Holding(IConnectionCallback):
    """Accepts messages and never releases them, as a queue without a consumer does."""

    def __init__(self) -> None:
        self.batches: list[ReceivedBatch] = []

    def recv(self, batch: ReceivedBatch) -> None:
        """Hold and store the batch."""
        batch.hold()
        self.batches.append(batch)

    @property
    def messages(self) -> int:
        """The number of stored messages."""
        return sum(map(len, self.batches))


@contextmanager
def prepared(**conf: Any) -> Iterator[LocalContext]:
    """Yield a context with these keys of tuplewire.transport, or with `session__` of tuplewire.session."""
    context = LocalContext()
    context.prepare({_key(name): value for name, value in conf.items()})
    try:
        yield context
    finally:
        context.term()


def _key(name: str) -> str:
    room, _, key = name.rpartition("__")
    return f"tuplewire.{room or 'transport'}.{key}"


def connect(context: LocalContext, server: StreamedServer[Any]) -> Any:
    """Return a new sender that is connected to a server."""
    return context.connect(TOPOLOGY, "", server.port)


@pytest.mark.parametrize("size", [1, 1000], ids=["messages", "bytes"])
def test_senders_that_are_gone_take_no_share(size: int) -> None:
    """After fifty senders have closed, the next one has the whole window, in messages and in bytes."""
    settings = {
        "receive_messages": WINDOW if size == 1 else 10 * WINDOW,
        "receive_bytes": 1000 * WINDOW,
        "session__max_message_bytes": 2000,
    }
    queue = Holding()
    with prepared(**settings) as context:
        server = context.bind(TOPOLOGY, 0, queue)
        for _ in range(SENDERS):
            sender = connect(context, server)
            sender.send(1, b"x" * size)
            sender.end.buffer.flush(10)
            sender.close()
        eventually(lambda: server.statistics().sharing_sessions == 0, 10)
        sender = connect(context, server)
        for _ in range(WINDOW - SENDERS):
            sender.send(1, b"x" * size)
        sender.end.buffer.flush(10)
        assert queue.messages == WINDOW


def test_nothing_is_left_of_what_has_ended() -> None:
    """Neither the registry nor a context retains closed ports and senders."""
    with prepared() as context:
        for _ in range(SENDERS):
            server = context.bind(TOPOLOGY, 0, Recorder())
            sender = connect(context, server)
            sender.send(1, b"x")
            sender.close()
            server.close()
        assert len(context._made) < 5
        eventually(lambda: not memory_servers, 10)


def test_a_limit_of_sessions_is_told(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """flush() of a sender over the limit gives the reason; it succeeds after another sender has closed."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(receiving_end, "MAX_SESSIONS", 2)
    with prepared() as context:
        server = context.bind(TOPOLOGY, 0, Recorder())
        senders = [connect(context, server) for _ in range(3)]
        for sender in senders[:2]:
            sender.send(1, b"x")
            sender.end.buffer.flush(10)
        senders[2].send(1, b"x")
        with pytest.raises(FlushTimeoutError, match="2 senders are connected already"):
            senders[2].end.buffer.flush(0.3)
        senders[0].close()
        senders[2].end.buffer.flush(10)


def test_nothing_is_written_after_writing_is_stopped() -> None:
    """A server that starts later receives nothing; the reclaimed messages are not marked as copies."""
    recorder, port = Recorder(), free_port()
    with prepared() as context:
        events = SendEvents(settled=lambda _: None, released=lambda _: None)
        client: Any = context.connect(TOPOLOGY, "", port, events=events)
        end = client.end
        assert end.thread.call(lambda: end.buffer.offer([TaskGroup.of(1, [b"a"])], "token"))
        end.writes = False
        context.bind(TOPOLOGY, port, recorder)
        eventually(lambda: client.status is ConnectionStatus.READY, timeout=20)
        left = end.thread.run(end.take_back(0.2))
        assert [(group.payloads(), group.redelivered, token) for group, token in left] == [
            ([b"a"], False, "token")
        ]
        assert recorder.seen() == []
