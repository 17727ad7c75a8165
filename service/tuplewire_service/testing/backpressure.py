"""What every transport must do when its receiver takes less than is sent."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from tuplewire.errors import BufferFullError
from tuplewire.message import TaskMessageBatch
from tuplewire_service.messaging.base import IClientConnection
from tuplewire_service.testing.scenery import (
    HOST,
    RECEIVE_MESSAGES,
    TOPOLOGY,
    Recorder,
    Scenery,
    assert_ledger,
    is_settled,
    raises,
    switching_often,
)
from tuplewire_service.testing.waiting import eventually


class BackpressureConformance(Scenery):
    """Bounds, what happens at them, and that they hold up nobody else."""

    def test_a_full_connection_says_so(self) -> None:
        """With a receiver that holds, what is accepted is bounded, and goes on once it is released."""
        recorder = Recorder(held_tasks=[1])
        with self.pair(recorder, max_pending_messages=10) as (_, client):
            accepted = self.fill(client)
            assert 10 <= accepted <= 10 + RECEIVE_MESSAGES
            assert not client.try_send(1, b"x")
            recorder.release()
            client.send(1, b"last", timeout=5)
            eventually(is_settled(client))
            assert len(recorder.payloads(1)) == accepted + 1
            assert_ledger(client, accepted + 1)

    @staticmethod
    def fill(client: IClientConnection) -> int:
        """Send to task 1 until there is no more room; return how much was accepted."""
        for accepted in range(10_000):
            try:
                client.send(1, b"x", timeout=0.2)
            except BufferFullError:
                return accepted
        raise AssertionError("10,000 messages were accepted for a receiver that takes none")

    def test_everybody_who_waits_for_room_gets_it(self) -> None:
        """Threads that share a connection with room for one message all get through."""
        recorder = Recorder()
        with self.pair(recorder, max_pending_messages=1) as (_, client):

            def send(task: int) -> None:
                for _ in range(100):
                    client.send(task, b"x", timeout=20)

            with switching_often(), ThreadPoolExecutor(8) as threads:
                for done in [threads.submit(send, task) for task in range(8)]:
                    done.result()
            eventually(is_settled(client))
            assert [len(recorder.payloads(task)) for task in range(8)] == [100] * 8

    def test_overflow_fail_does_not_wait(self) -> None:
        """With overflow=fail, send raises at once where it would wait."""
        recorder = Recorder(held_tasks=[1])
        with self.pair(recorder, max_pending_messages=1, overflow="fail") as (_, client):
            raises(BufferFullError, lambda: [client.send(1, b"x") for _ in range(10_000)])
            recorder.release()

    def test_overflow_drop_oldest_never_waits_for_a_server(self) -> None:
        """With overflow=drop_oldest and nobody there, the oldest give way, one for one; the newest arrive."""
        port = self.unused_port()
        recorder = Recorder()
        with self.context(max_pending_messages=1000, overflow="drop_oldest") as context:
            client = context.connect(TOPOLOGY, HOST, port)
            for start in range(0, 5000, 8):
                numbers = range(start, start + 8)
                assert client.try_send(
                    TaskMessageBatch.from_columns([n % 3 for n in numbers], [b"%d" % n for n in numbers])
                )
            assert_ledger(client, 5000, overflow=4000)
            context.bind(TOPOLOGY, port, recorder)
            eventually(is_settled(client), timeout=10)
            for task in range(3):
                assert list(map(int, recorder.payloads(task))) == [
                    n for n in range(4000, 5000) if n % 3 == task
                ]
            assert_ledger(client, 5000, overflow=4000)

    def test_overflow_drop_oldest_with_a_stopped_consumer(self) -> None:
        """What a receiver that holds does not have gives way, oldest first; what it has stays, in order.

        A sender need not wait as long as there is something that the receiver does not have.
        """
        recorder = Recorder(held_tasks=[1])
        bound = RECEIVE_MESSAGES + 1000
        with self.pair(recorder, max_pending_messages=bound, overflow="drop_oldest") as (_, client):
            accepted = 0
            while accepted < 10 * bound:
                numbers = range(accepted, accepted + 100)
                if not client.try_send(TaskMessageBatch.from_columns(1, [b"%d" % n for n in numbers])):
                    assert len(recorder.payloads(1)) == client.statistics().ledger.pending
                    break
                accepted += 100
            recorder.release()
            eventually(is_settled(client), timeout=10)
            arrived = list(map(int, recorder.payloads(1)))
            assert arrived == sorted(set(arrived))
            assert arrived[-1000:] == list(range(accepted - 1000, accepted))
            dropped = accepted - len(arrived)
            assert_ledger(client, accepted, **({"overflow": dropped} if dropped else {}))

    def test_a_stopped_task_leaves_the_others_going(self) -> None:
        """Messages to other tasks pass those of a task whose receiver holds."""
        recorder = Recorder(held_tasks=[1])
        with self.pair(recorder) as (_, client):
            client.send(TaskMessageBatch.from_columns(1, [b"stopped"] * 1000))
            for number in range(1000):
                client.send(2, b"%d" % number)
            eventually(lambda: len(recorder.payloads(2)) == 1000)
            recorder.release()
            eventually(is_settled(client))
