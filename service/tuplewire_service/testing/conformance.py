"""The conformance tests of transports, as a class to inherit from.

::

    class TestMyTransport(TransportConformance):
        def make_context(self) -> IContext:
            return MyContext()          # not prepared

Each test opens and closes its own contexts. The tests do not need pytest, only a runner that finds `test_*`
methods of a class. Used by tests of transports. Owns the contexts of the running test. Not thread-safe.
Design: docs/design/sessions.md.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from unittest import TestCase

from tuplewire.errors import BindError, BufferFullError, ClosedError, NotReadyError, RefusedError
from tuplewire.settings.config import SessionSettings
from tuplewire.values.batch import TaskMessageBatch
from tuplewire.values.message import SHUTDOWN_MESSAGE, TaskMessage
from tuplewire_service.messaging.base import (
    ConnectionStatus,
    IClientConnection,
    IConnectionCallback,
    ReceivedBatch,
)
from tuplewire_service.testing.harness import (
    HOST,
    RECEIVE_MESSAGES,
    TOPOLOGY,
    Recorder,
    TransportHarness,
    assert_ledger,
    eventually,
    frequent_thread_switches,
    is_ready,
    settled_condition,
)


class TransportConformance(TransportHarness):
    """The tests that every transport must pass. Inherit from it, and define make_context()."""

    def test_a_batch_arrives_in_order(self) -> None:
        """All messages arrive once, in order within each (source, task)."""
        with self.recorded() as (recorder, client):
            for start in range(0, 1000, 100):
                numbers = range(start, start + 100)
                client.send(
                    TaskMessageBatch.from_columns(
                        [n % 3 for n in numbers],
                        [b"%d" % n for n in numbers],
                        sources=[n % 2 for n in numbers],
                    )
                )
            assert_ledger(client, 1000)
            seen = recorder.received()
            assert len(seen) == 1000
            for source in range(2):
                for task in range(3):
                    got = [int(p) for s, t, p in seen if (s, t) == (source, task)]
                    assert got == [n for n in range(1000) if (n % 2, n % 3) == (source, task)]

    def test_each_connect_is_a_new_connection(self) -> None:
        """Two connections of one context carry their own messages and balance."""
        recorder = Recorder()
        with self.context() as context:
            server = context.bind(TOPOLOGY, 0, recorder)
            clients = [context.connect(TOPOLOGY, HOST, server.port) for _ in range(2)]
            assert clients[0] is not clients[1]
            for number, client in enumerate(clients):
                client.send(number, b"x")
            for client in clients:
                assert_ledger(client, 1)
            assert len(recorder.received()) == 2

    def test_ports_and_statuses(self) -> None:
        """A client reports its peer's port. It is CONNECTING, READY and finally CLOSED."""
        port = self.unused_port()
        with self.context() as context:
            client = context.connect(TOPOLOGY, HOST, port)
            assert (client.port, client.status) == (port, ConnectionStatus.CONNECTING)
            server = context.bind(TOPOLOGY, port, Recorder())
            assert (server.port, server.status) == (port, ConnectionStatus.READY)
            assert server.addresses
            eventually(lambda: is_ready(client), timeout=10)
            for connection in (client, server):
                connection.close()
                assert connection.status is ConnectionStatus.CLOSED

    def test_messages_wait_for_the_server(self) -> None:
        """Messages sent before the server is bound are delivered afterwards, before later messages."""
        port = self.unused_port()
        recorder = Recorder()
        with self.context() as context:
            client = context.connect(TOPOLOGY, HOST, port)
            for number in range(5):
                client.send(1, b"%d" % number)

            class AnsweringCallback(IConnectionCallback):
                def recv(self, batch: ReceivedBatch) -> None:
                    first = not recorder.received()
                    recorder.recv(batch)
                    if first:
                        assert client.try_send(1, b"5")

            assert not is_ready(client)
            context.bind(TOPOLOGY, port, AnsweringCallback())
            eventually(lambda: len(recorder.received()) == 6, timeout=10)
            assert is_ready(client)
            assert recorder.payloads(1) == [b"%d" % n for n in range(6)]

    def test_programs_wait_for_a_server_that_is_not_ready(self) -> None:
        """No message arrives while the callback is not ready; afterwards all arrive automatically."""
        recorder = Recorder()

        class Starting(IConnectionCallback):
            ready = False

            def recv(self, batch: ReceivedBatch) -> None:
                assert self.ready
                recorder.recv(batch)

            @property
            def not_ready_error(self) -> RefusedError | None:
                return None if self.ready else NotReadyError("no assignment yet")

        callback = Starting()
        with self.pair(callback) as (_, client):
            for number in range(3):
                client.send(1, b"%d" % number)
            assert client.statistics().ledger.pending == 3
            callback.ready = True
            assert_ledger(client, 3)
            assert recorder.payloads(1) == [b"0", b"1", b"2"]

    def test_a_bound_port_is_refused(self) -> None:
        """A second bind of a port raises an error; two servers do not share the port."""
        with self.pair(Recorder()) as (server, _), self.context() as context:
            TestCase().assertRaises(BindError, context.bind, TOPOLOGY, server.port, Recorder())

    def test_close_waits_for_accepted_messages(self) -> None:
        """All sent messages have arrived when close() returns; a later send() raises ClosedError."""
        with self.recorded() as (recorder, client):
            client.send(TaskMessageBatch.from_columns(1, [b"x"] * 5000))
            client.close()
            assert len(recorder.received()) == 5000
            assert_ledger(client, 5000)
            assert client.status is ConnectionStatus.CLOSED
            TestCase().assertRaises(ClosedError, client.send, 1, b"x")
            client.close()

    def test_abort_counts_dropped_messages(self) -> None:
        """Without a server, all messages are dropped and counted; a second abort() has no effect."""
        with self.context() as context:
            client = context.connect(TOPOLOGY, HOST, self.unused_port())
            client.send(1, b"x")
            client.abort()
            client.abort()
            assert_ledger(client, 1, closed=1)

    def test_after_set_accepted_peers_messages_stay_with_the_sender(self) -> None:
        """Accepted messages are acknowledged. Later ones wait at the sender for the next server."""
        first, second = Recorder(), Recorder()
        with self.context() as context:
            server = context.bind(TOPOLOGY, 0, first)
            assert server.addresses
            client = context.connect(TOPOLOGY, HOST, server.port)
            client.send(1, b"taken")
            eventually(lambda: first.payloads(1) == [b"taken"])
            server.set_accepted_peers()
            eventually(settled_condition(client))
            client.send(1, b"kept")
            server.close()
            assert client.statistics().ledger.pending == 1
            client.send(1, b"later")
            context.bind(TOPOLOGY, server.port, second)
            eventually(lambda: second.payloads(1) == [b"kept", b"later"], timeout=10)
            assert first.payloads(1) == [b"taken"]

    def test_a_closed_server_frees_its_port(self) -> None:
        """After close(), the port is free, loads cannot be sent, and a blocked recv() has returned."""
        with self.context() as context:
            server = context.bind(TOPOLOGY, 0)
            got: list[TaskMessage | None] = []
            puller = threading.Thread(target=lambda: got.append(server.recv()), daemon=True)
            puller.start()
            server.close()
            puller.join(10)
            assert got == [SHUTDOWN_MESSAGE]
            assert server.status is ConnectionStatus.CLOSED
            TestCase().assertRaises(ClosedError, server.send_load_metrics, {1: 1.0})
            server.close()
            context.bind(TOPOLOGY, server.port, Recorder())

    def test_term_closes_all_connections(self) -> None:
        """term() closes all connections of the context; a second call has no effect."""
        context = self.make_context()
        context.prepare(self.conf(SessionSettings(), ""))
        server = context.bind(TOPOLOGY, 0, Recorder())
        client = context.connect(TOPOLOGY, HOST, server.port)
        context.term()
        context.term()
        assert server.status is client.status is ConnectionStatus.CLOSED

    def test_a_full_connection_raises_buffer_full(self) -> None:
        """While a receiver holds messages, a client accepts a limited number, and more after the release."""
        with self.recorded(1, max_pending_messages=10) as (recorder, client):
            accepted = 0
            with TestCase().assertRaises(BufferFullError):
                while accepted <= 10 + RECEIVE_MESSAGES:
                    client.send(1, b"x", timeout=0.2)
                    accepted += 1
            assert 10 <= accepted <= 10 + RECEIVE_MESSAGES
            assert not client.try_send(1, b"x")
            recorder.release()
            client.send(1, b"last", timeout=5)
            assert_ledger(client, accepted + 1)
            assert len(recorder.payloads(1)) == accepted + 1

    def test_workers_that_send_to_each_other_from_their_callbacks(self) -> None:
        """Two workers that send to each other from their callbacks do not block each other."""
        clients: list[IClientConnection] = []
        counts = [0, 0]

        class Answering(IConnectionCallback):
            def __init__(self, number: int) -> None:
                self.number = number

            def recv(self, batch: ReceivedBatch) -> None:
                counts[self.number] += len(batch)
                for left in [int(payload) for payload in batch.payloads]:
                    if left:
                        assert clients[1 - self.number].try_send(1, b"%d" % (left - 1))

        with self.context() as one, self.context() as other, frequent_thread_switches():
            servers = [context.bind(TOPOLOGY, 0, Answering(n)) for n, context in enumerate((one, other))]
            clients += [one.connect(TOPOLOGY, HOST, servers[0].port)]
            clients += [other.connect(TOPOLOGY, HOST, servers[1].port)]

            def send(number: int) -> None:
                for _ in range(100):
                    clients[number].send(1, b"9", timeout=20)

            with ThreadPoolExecutor(2) as threads:
                list(threads.map(send, (0, 1)))
            eventually(lambda: counts == [1000, 1000], timeout=20)

    def test_a_stopped_task_does_not_block_others(self) -> None:
        """A task with held messages does not block messages to other tasks."""
        with self.recorded(1) as (recorder, client):
            client.send(TaskMessageBatch.from_columns(1, [b"stopped"] * 1000))
            for number in range(1000):
                client.send(2, b"%d" % number)
            eventually(lambda: len(recorder.payloads(2)) == 1000)
            recorder.release()
            eventually(settled_condition(client))

    def test_load_reaches_the_clients(self) -> None:
        """Every client receives loads, even if it connects later. Loads are not delivered as messages."""
        recorder = Recorder()
        with self.context() as context:
            server = context.bind(TOPOLOGY, 0, recorder)
            client = context.connect(TOPOLOGY, HOST, server.port)
            eventually(lambda: is_ready(client))
            assert client.get_load([1, 2]) == {}
            for load in (0.5, 0.75, 0.25):  # the last report of a task counts
                server.send_load_metrics({1: load, 2: 1.0})
            eventually(lambda: client.get_load([1, 2, 3]) == {1: 0.25, 2: 1.0})
            late = context.connect(TOPOLOGY, HOST, server.port)
            eventually(lambda: late.get_load([2]) == {2: 1.0})
            assert recorder.received() == []
