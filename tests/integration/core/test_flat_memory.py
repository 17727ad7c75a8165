"""With a stopped consumer, memory stays within its limit; a consumed queue returns it to the system."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import eventually
from helpers.memory import MIB, rss
from helpers.program import Program
from helpers.streams import Load, Produced, producer
from helpers.topology import TOPOLOGY, Pair, ledger, metric, one_worker, pair_of_workers

from tuplewire import Client, TaskMessageBatch

BOUND_BYTES = 64 * MIB
"""The limit of the producer's buffer, and of the task's receive queue."""
MAX_BYTES = BOUND_BYTES + 8 * MIB
"""The buffered messages, and the eight frames that a connection may have in flight."""
GIVE_BACK = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
"""Makes glibc return freed memory to the system immediately. By default it retains 5 to 25 MB at random:
a worker without messages grows by as much."""
FLAT_BYTES = BOUND_BYTES // 20
"""The largest growth that is ignored once all buffers are full."""
SIZE = 1000
MANY = 1_000_000
"""A limit in messages that is never reached."""
ATTEMPTS = 5_000_000
"""Messages that the producer tries to send while all buffers are full."""
SOURCE = 7


class Watch:
    """The memory of some processes, compared with the start."""

    def __init__(self, **process_ids: int) -> None:
        self._process_ids = process_ids
        self._before = {name: rss(process_id) for name, process_id in process_ids.items()}

    def growth(self) -> dict[str, int]:
        """Return the growth of each process in bytes."""
        return {name: rss(process_id) - self._before[name] for name, process_id in self._process_ids.items()}


def _produced(producing: Program) -> Produced:
    produced: Produced = producing.ask("progress")
    return produced


@pytest.mark.slow
def test_memory_is_flat_with_a_stopped_consumer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The producer and both workers grow by their buffers and frames in flight, and then stop growing."""
    for name, value in GIVE_BACK.items():
        monkeypatch.setenv(name, value)
    settings = {
        "max_pending_bytes": BOUND_BYTES,
        "max_pending_messages": MANY,
        "max_pending_task_messages": MANY,
    }
    queues = (f"--receive-queue-bytes={BOUND_BYTES}", f"--receive-queue-messages={MANY}")
    with pair_of_workers(*queues) as pair:
        task = pair.far_task()
        load = Load([task], batch=100, size=SIZE, try_send=True, waits=True, settings=settings)
        with (
            Client(pair.far.address, topology=TOPOLOGY, prefetch_bytes=MIB) as consumer,
            consumer.recv([task], timeout=20) as subscription,
            Program(producer, TOPOLOGY, [(pair.near.address, SOURCE)], load) as producing,
        ):
            eventually(
                lambda: _produced(producing).connections == {SOURCE: 1}, 30, "the producer is connected"
            )
            watch = Watch(producer=producing.process_id, near=pair.near.process_id, far=pair.far.process_id)
            producing.ask("go")
            next(subscription)  # the only batch that the consumer takes
            _fills_up(pair, producing)
            full, peak = watch.growth(), watch.growth()
            attempts = _produced(producing).refused
            while _produced(producing).refused < attempts + ATTEMPTS:
                peak = {name: max(peak[name], now) for name, now in watch.growth().items()}
            assert all(growth <= MAX_BYTES for growth in peak.values()), peak
            assert all(peak[name] - full[name] <= FLAT_BYTES for name in peak), (full, peak)
            assert _produced(producing).ledgers[SOURCE].balanced
            # The last message may exceed the limit.
            assert _produced(producing).ledgers[SOURCE].pending * SIZE < BOUND_BYTES + SIZE
            assert metric(pair.far, f'tuplewire_queue_bytes{{task="{task}"}}') < BOUND_BYTES + SIZE


def _fills_up(pair: Pair, producing: Program) -> None:
    """Wait until the producer and the far worker are nearly full and no more messages are accepted."""

    def full() -> bool:
        pending = _produced(producing).ledgers[SOURCE].pending, ledger(pair.far).pending
        return all(count * SIZE >= 0.9 * BOUND_BYTES for count in pending)

    eventually(full, 60, "everything full")
    seen: list[int] = []

    def still() -> bool:
        # Messages of the near worker may still be in flight to the far one.
        seen.append(sum(_produced(producing).sent.values()) + ledger(pair.far).pending)
        return seen[-5:] == seen[-1:] * 5

    eventually(still, 60, "nothing more is taken")


BATCHES, MESSAGES = 600, 200
PAYLOAD = b"x" * 500
HELD_BYTES = BATCHES * MESSAGES * len(PAYLOAD)


@pytest.mark.slow
def test_a_queue_that_was_full_leaves_nothing_behind(tmp_path: Path) -> None:
    """After 57 MiB of queued messages are consumed, the worker is about as small as before."""
    with (
        one_worker("w", "--receive-queue-bytes=128MiB", directory=tmp_path, tasks=[0]) as worker,
        Client(worker.address, topology=TOPOLOGY) as client,
    ):
        before = rss(worker.process_id)
        for _ in range(BATCHES):
            client.send(TaskMessageBatch.from_columns(0, [PAYLOAD] * MESSAGES))
        client.flush(60)
        assert rss(worker.process_id) - before > HELD_BYTES, "it was held in memory"
        with client.recv([0], timeout=60) as batches:
            left = BATCHES * MESSAGES
            while left:
                left -= len(next(batches))
            batches.acknowledge()
        eventually(lambda: rss(worker.process_id) - before < HELD_BYTES // 3, 30)
