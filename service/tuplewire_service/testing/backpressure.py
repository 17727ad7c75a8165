"""Conformance tests of transports: bounds and backpressure, and the reports of servers to clients.

Used by conformance.py. Owns no state. Not thread-safe. Design: docs/design/credit.md.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from tuplewire.errors import BufferFullError
from tuplewire.values.batch import TaskMessageBatch
from tuplewire.values.group import TaskGroup
from tuplewire_service.messaging.base import IClientConnection, IConnectionCallback, ReceivedBatch
from tuplewire_service.testing.scenery import (
    HOST,
    RECEIVE_MESSAGES,
    TOPOLOGY,
    Recorder,
    Scenery,
    assert_ledger,
    eventually,
    is_ready,
    is_settled,
    switching_often,
)


class BackpressureConformance(Scenery):
    """Tests that queues are bounded, and that a full queue does not block other tasks."""

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
                    eventually(is_settled(client))
                    client.close()
                    eventually(lambda: not server.statistics().sessions, what="its goodbye is heard")
            assert len(recorder.payloads(1)) == RECEIVE_MESSAGES
            recorder.release()
            eventually(lambda: len(recorder.payloads(1)) == 12 * part)

    def test_a_full_connection_says_so(self) -> None:
        """While a receiver holds messages, a client accepts a limited number, and more after the release."""
        with self.recorded(1, max_pending_messages=10) as (recorder, client):
            accepted = self.fill(client)
            assert 10 <= accepted <= 10 + RECEIVE_MESSAGES
            assert not client.try_send(1, b"x")
            recorder.release()
            client.send(1, b"last", timeout=5)
            assert_ledger(client, accepted + 1)
            assert len(recorder.payloads(1)) == accepted + 1

    @staticmethod
    def fill(client: IClientConnection) -> int:
        """Send to task 1 until the buffer is full; return the number of accepted messages."""
        for accepted in range(10_000):
            try:
                client.send(1, b"x", timeout=0.2)
            except BufferFullError:
                return accepted
        raise AssertionError("10,000 messages were accepted for a receiver that takes none")

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

        with self.context() as one, self.context() as other, switching_often():
            servers = [context.bind(TOPOLOGY, 0, Answering(n)) for n, context in enumerate((one, other))]
            clients += [one.connect(TOPOLOGY, HOST, servers[0].port)]
            clients += [other.connect(TOPOLOGY, HOST, servers[1].port)]

            def send(number: int) -> None:
                for _ in range(100):
                    clients[number].send(1, b"9", timeout=20)

            with ThreadPoolExecutor(2) as threads:
                list(threads.map(send, (0, 1)))
            eventually(lambda: counts == [1000, 1000], timeout=20)

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

    def test_a_stopped_task_leaves_the_others_going(self) -> None:
        """A task with held messages does not block messages to other tasks."""
        with self.recorded(1) as (recorder, client):
            client.send(TaskMessageBatch.from_columns(1, [b"stopped"] * 1000))
            for number in range(1000):
                client.send(2, b"%d" % number)
            eventually(lambda: len(recorder.payloads(2)) == 1000)
            recorder.release()
            eventually(is_settled(client))


class NewsConformance(Scenery):
    """Tests of the counts on both sides, and of the reports from servers to clients."""

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
            assert recorder.seen() == []

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
                eventually(is_settled(client))
                assert client.statistics().sent_messages == count
            received = {each.source: (each.messages, each.bytes) for each in server.statistics().received}
            assert received == {"client": (3, 6), "w1": (3, 6), "w2": (4, 8)}

    def test_load_goes_both_ways(self) -> None:
        """Two workers, each with a server and a client of the other's, receive each other's loads."""
        with self.context() as one, self.context() as other:
            servers = [each.bind(TOPOLOGY, 0, Recorder()) for each in (one, other)]
            clients = [
                each.connect(TOPOLOGY, HOST, server.port)
                for each, server in zip((other, one), servers, strict=True)
            ]
            for client in clients:
                eventually(lambda client=client: is_ready(client))  # type: ignore[misc]
            servers[0].send_load_metrics({1: 0.5})
            servers[1].send_load_metrics({2: 0.75})
            eventually(lambda: [client.get_load([1, 2]) for client in clients] == [{1: 0.5}, {2: 0.75}])
