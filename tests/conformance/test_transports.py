"""The shipped conformance kit, and the behaviour of all transports, run on each built-in transport."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pytest

from tuplewire.errors import ClosedError, InvalidTaskError
from tuplewire.settings.config import SessionSettings
from tuplewire.values.batch import TaskMessageBatch
from tuplewire.values.group import TaskGroup
from tuplewire.values.message import SHUTDOWN_MESSAGE, SHUTDOWN_TASK, TaskMessage
from tuplewire_service.messaging.base import (
    BLOCK,
    NO_BLOCK,
    AcceptedPeers,
    IConnectionCallback,
    IContext,
    IServerConnection,
    ReceivedBatch,
)
from tuplewire_service.messaging.factory import TRANSPORT_KEY, TransportFactory
from tuplewire_service.testing import TransportConformance
from tuplewire_service.testing.harness import (
    HOST,
    RECEIVE_MESSAGES,
    TOPOLOGY,
    UNKNOWN_TASK,
    Recorder,
    TransportHarness,
    assert_ledger,
    eventually,
    is_ready,
    settled_condition,
)

TRACE = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
"""A header value in the format of W3C Trace Context."""


class SharedBehaviour(TransportHarness):
    """Tests that run on each of Tuplewire's transports. A new transport has this code in common with them."""

    transport: str

    def make_context(self) -> IContext:
        return TransportFactory.make_context({TRANSPORT_KEY: self.transport})

    def test_an_iterable_of_messages(self) -> None:
        """Any iterable of TaskMessages can be sent, empty payloads included."""
        with self.recorded() as (recorder, client):
            client.send(TaskMessage(task, b"x" * task) for task in range(3))
            eventually(
                lambda: sorted(recorder.received(), key=str) == [(None, n, b"x" * n) for n in range(3)]
            )

    def test_keys_and_headers_stay_with_their_messages(self) -> None:
        """Messages arrive in order with their own key and headers, if any, in one batch and in several."""
        messages = [
            TaskMessage(1, b"plain"),
            TaskMessage(1, b"keyed", key=b"k"),
            TaskMessage(1, b"", key=b"", headers=[("traceparent", TRACE), ("", b""), ("traceparent", b"")]),
            TaskMessage(1, b"x" * 2000, headers=[("large", b"y" * 2000)]),
            TaskMessage(1, b"plain again"),
        ]
        with self.recorded() as (recorder, client):
            client.send(messages)
            for message in messages:
                client.send([message])
            client.send(messages[-1:] * 100 + messages[1:2] * 100)
            expected = messages * 2 + messages[-1:] * 100 + messages[1:2] * 100
            assert_ledger(client, len(expected))
            eventually(lambda: recorder.messages(1) == expected)

    def test_task_ids_reach_to_the_end(self) -> None:
        """send() accepts a task id and a payload. Ids from 0 to 2^31-1 are valid; others are not sent."""
        with self.recorded() as (recorder, client):
            client.send(0, b"first")
            client.send(2**31 - 1, b"last")
            for task in (-1, 2**31):
                with pytest.raises(InvalidTaskError):
                    client.send(task, b"")
            assert_ledger(client, 2)
            assert set(recorder.received()) == {(None, 0, b"first"), (None, 2**31 - 1, b"last")}

    def test_refusals_of_what_waited_are_told(self) -> None:
        """A new callback gets waiting messages first, in order; its refusals are counted on both sides."""
        recorder = Recorder()
        with self.pair(None) as (server, client):
            client.send([TaskMessage(1, b"a"), TaskMessage(UNKNOWN_TASK, b"b"), TaskMessage(1, b"c")])
            eventually(lambda: is_ready(client))
            assert client.statistics().ledger.pending == 3
            server.register_recv(recorder)
            client.send(1, b"d")
            assert_ledger(client, 4, unknown_task=1)
            assert recorder.received() == [(None, 1, b"a"), (None, 1, b"c"), (None, 1, b"d")]
            assert server.statistics().refused_messages == {"UNKNOWN_TASK": 1}

    def test_a_close_without_time_frees_the_port(self) -> None:
        """close(0) does not wait for senders, and raises no error; the port can be bound again."""
        with self.context() as context:
            server = context.bind(TOPOLOGY, 0, Recorder())
            client = context.connect(TOPOLOGY, HOST, server.port)
            eventually(lambda: is_ready(client))
            server.close(0)
            context.bind(TOPOLOGY, server.port, Recorder())

    def test_pulled_messages_release_their_headers(self) -> None:
        """Credit counts keys and headers, so a pulled message returns credit for them, too."""
        large = TaskMessage(1, b"x", key=b"k", headers=[("h", bytes(200_000))])
        with self.pair(None) as (server, client):
            for _ in range(100):  # more than the 16 MiB of outstanding messages to a task
                client.send([large])
                eventually(lambda: server.recv(NO_BLOCK) == large)
            eventually(settled_condition(client))

    def test_a_receive_loop_in_the_classic_way(self) -> None:
        """A loop can block for a message, then take the available ones; the shutdown notice is the last."""
        batches: list[list[TaskMessage]] = []

        def receive(server: IServerConnection) -> None:
            while True:
                batch: list[TaskMessage] = []
                message = server.recv(BLOCK)
                while message is not None:
                    if message.task == SHUTDOWN_TASK:
                        batches.append(batch)
                        server.close()
                        return
                    batch.append(message)
                    message = server.recv(NO_BLOCK)
                batches.append(batch)

        with self.pair(None) as (server, client):
            loop = threading.Thread(target=receive, args=[server], daemon=True)
            loop.start()
            for number in range(20):
                client.send(number % 2, b"%d" % number)
            client.close()
            server.close()
            loop.join(10)
            assert not loop.is_alive(), "the shutdown notice did not end the loop"
            taken = [int(message.message) for batch in batches for message in batch]
            assert [n for n in taken if n % 2] == list(range(1, 20, 2))
            assert [n for n in taken if not n % 2] == list(range(0, 20, 2))
            assert server.recv(NO_BLOCK) == server.recv(BLOCK) == SHUTDOWN_MESSAGE

    def test_messages_are_pulled_or_called_back(self) -> None:
        """A connection delivers to a callback or to recv(); the other one raises ClosedError."""
        with self.pair(Recorder()) as (server, _):
            with pytest.raises(ClosedError):
                server.recv(NO_BLOCK)
            with pytest.raises(ClosedError):
                server.register_recv(Recorder())
        with self.pair(None) as (server, _):
            assert server.recv(NO_BLOCK) is None
            with pytest.raises(ClosedError):
                server.register_recv(Recorder())

    def test_intake_may_be_for_workers_only(self) -> None:
        """Workers continue and programs wait until a call admits them. No message is lost or duplicated."""
        recorder = Recorder()
        with self.context() as context, self.context("w1") as other:
            server = context.bind(TOPOLOGY, 0, recorder)
            program = context.connect(TOPOLOGY, HOST, server.port)
            worker = other.connect(TOPOLOGY, HOST, server.port)
            for client in (program, worker):
                client.send(1, b"before")
                eventually(settled_condition(client))
            server.set_accepted_peers(AcceptedPeers.WORKERS)
            program.send(2, b"program")
            worker.send(3, b"worker")
            eventually(settled_condition(worker), timeout=20)
            assert recorder.payloads(2) == []
            assert program.statistics().ledger.pending == 1
            server.set_accepted_peers(AcceptedPeers.ALL)
            eventually(settled_condition(program), timeout=20)
            assert [recorder.payloads(task) for task in (2, 3)] == [[b"program"], [b"worker"]]
            assert len(recorder.payloads(1)) == 2

    def test_an_unknown_task_is_refused_and_counted(self) -> None:
        """The refusal is in the sender's ledger and the server's counts; the rest of the batch arrives."""
        recorder = Recorder()
        with self.pair(recorder) as (server, client):
            client.send(
                [TaskMessage(UNKNOWN_TASK, b"a"), TaskMessage(1, b"b"), TaskMessage(UNKNOWN_TASK, b"c")]
            )
            assert_ledger(client, 3, unknown_task=2)
            assert recorder.received() == [(None, 1, b"b")]
            assert server.statistics().refused_messages == {"UNKNOWN_TASK": 2}

    def test_what_a_callback_fails_at_is_refused(self) -> None:
        """The sender counts an exception in the callback as a refusal, and the connection continues."""
        recorder = Recorder()

        class Failing(IConnectionCallback):
            def recv(self, batch: ReceivedBatch) -> None:
                if batch.payloads[0] == b"bad":
                    raise ValueError("a defect of the receiver")
                recorder.recv(batch)

        with self.pair(Failing()) as (server, client):
            client.send(1, b"bad")
            assert_ledger(client, 1, refused=1)
            client.send(1, b"good")
            assert_ledger(client, 2, refused=1)
            assert recorder.received() == [(None, 1, b"good")]
            assert sum(server.statistics().refused_messages.values()) == 1

    def test_brief_senders_keep_to_the_bound(self) -> None:
        """Short-lived senders do not fill a queue over its bound while no message is released."""
        recorder = Recorder(held_tasks=[1])
        part = RECEIVE_MESSAGES // 4
        with self.context() as context:
            server = context.bind(TOPOLOGY, 0, recorder)
            clients = []
            for number in range(12):
                clients += [client := context.connect(TOPOLOGY, HOST, server.port)]
                client.send(TaskMessageBatch.from_columns([1] * part, [b"%d" % number] * part))
                if number < 4:  # these senders fill the queue
                    eventually(settled_condition(client))
                    client.close()
                    eventually(lambda: not server.statistics().sessions, what="its goodbye is heard")
            assert len(recorder.payloads(1)) == RECEIVE_MESSAGES
            recorder.release()
            eventually(lambda: len(recorder.payloads(1)) == 12 * part)

    def test_a_lock_of_the_callback_may_be_held_at_a_release(self) -> None:
        """A release does not call the callback, so its caller may hold a lock that the callback acquires."""
        lock = threading.Lock()
        held: list[tuple[ReceivedBatch, TaskGroup]] = []
        count = 2 * RECEIVE_MESSAGES

        class Locking(IConnectionCallback):
            def recv(self, batch: ReceivedBatch) -> None:
                assert lock.acquire(timeout=5), "whoever releases delivers"
                batch.hold()
                held.extend((batch, group) for group in batch.groups)
                lock.release()

        with self.pair(Locking()) as (_, client):

            def release_all() -> bool:
                with lock:
                    for batch, group in held:
                        batch.inbound.release(group.task, len(group), group.size_bytes)
                    held.clear()
                return client.statistics().ledger.pending == 0

            client.send(TaskMessageBatch.from_columns(1, [b"x"] * count))
            eventually(lambda: held)
            assert client.statistics().ledger.pending > 0
            eventually(release_all, timeout=20)
            assert_ledger(client, count)
            eventually(release_all)

    def test_backpressure_status_reaches_the_clients(self) -> None:
        """A client reports congested tasks until they are relieved."""
        with self.pair(Recorder()) as (server, client):
            eventually(lambda: is_ready(client))
            server.send_backpressure_status("w", [1, 2], [])
            eventually(lambda: client.congested == {1, 2})
            server.send_backpressure_status("w", [], [1])
            eventually(lambda: client.congested == {2})

    def test_a_client_learns_the_assignment_version_on_connecting(self) -> None:
        """A client that connects receives the receiver's assignment version."""

        class Assigned(Recorder):
            """A receiver with an assignment."""

            assignment_version = 7

        with self.pair(Assigned()) as (_, client):
            eventually(lambda: client.statistics().receiver_assignment_version == 7)

    def test_counts_are_by_source(self) -> None:
        """Both sides count. Each worker is a separate source; all programs are one source, `client`."""
        with self.context() as program, self.context("w1") as one, self.context("w2") as other:
            server = program.bind(TOPOLOGY, 0, Recorder())
            contexts = (program, program, one, other)
            clients = [context.connect(TOPOLOGY, HOST, server.port) for context in contexts]
            for count, client in enumerate(clients, start=1):
                client.send(TaskMessageBatch.from_columns(1, [b"12"] * count))
                eventually(settled_condition(client))
                assert client.statistics().sent_messages == count
            received = {each.source: (each.messages, each.bytes) for each in server.statistics().received}
            assert received == {"client": (3, 6), "w1": (3, 6), "w2": (4, 8)}


class TestLocal(TransportConformance, SharedBehaviour):
    """Within one process."""

    transport = "local"


class TestGrpc(TransportConformance, SharedBehaviour):
    """Over real sockets."""

    transport = "grpc"


class TestZmq(TransportConformance, SharedBehaviour):
    """Over ZeroMQ's TCP."""

    transport = "zmq"


class TestZmqIpc(TransportConformance):
    """Over ZeroMQ's Unix sockets, as in Storm's local mode."""

    def make_context(self) -> IContext:
        return TransportFactory.make_context({TRANSPORT_KEY: "zmq"})

    def conf(self, settings: SessionSettings, worker_id: str) -> Mapping[str, Any]:
        return {**super().conf(settings, worker_id), "storm.cluster.mode": "local"}
