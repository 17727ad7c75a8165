"""The receive queue of an executor: capacity, waits and statistics."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from helpers.program import in_threads

from tuplewire.errors import ClosedError
from tuplewire_service.testing import eventually
from tuplewire_topology import Stream, Tuple
from tuplewire_topology.authoring.tuples import AddressedTuples, TupleSource
from tuplewire_topology.running.receive_queue import ReceiveQueue

SOURCE = TupleSource("spout", 1, Stream("number"))


def column(numbers: Iterable[int], task: int = 2) -> AddressedTuples:
    """Return tuples with these numbers."""
    return AddressedTuples(task, [Tuple([number], SOURCE) for number in numbers])


def numbers(columns: Iterable[AddressedTuples]) -> list[int]:
    """Return the numbers of tuples."""
    return [message[0] for each in columns for message in each.tuples]


def test_batches_come_out_in_order() -> None:
    """Columns keep their order, and are taken whole until there are enough tuples."""
    queue = ReceiveQueue(100)
    for start in (0, 10, 20):
        queue.publish(column(range(start, start + 10), task=start))
    assert [each.task for each in queue.consume(11)] == [0, 10]
    assert numbers(queue.consume(11)) == list(range(20, 30))


def test_publisher_waits_for_room() -> None:
    """Publishers wait for space; the queue never exceeds its capacity and loses nothing."""
    queue = ReceiveQueue(7)
    taken: list[AddressedTuples] = []
    with in_threads(*(partial(queue.publish, column(range(100), task)) for task in (1, 2))):
        while sum(len(each.tuples) for each in taken) < 200:
            assert queue.statistics().population <= 7
            taken += queue.consume(3, timeout=10)
    for task in (1, 2):
        assert numbers(each for each in taken if each.task == task) == list(range(100))


def test_overflow_does_not_wait() -> None:
    """Tuples that must not wait exceed the capacity, and count as overflow until consumed."""
    queue = ReceiveQueue(4)
    queue.publish_to_overflow(column(range(10)))
    seen = queue.statistics()
    assert (seen.population, seen.capacity, seen.fill_ratio, seen.overflow) == (10, 4, 1.0, 6)
    queue.consume(1)
    seen = queue.statistics()
    assert (seen.population, seen.overflow, seen.fill_ratio) == (0, 0, 0.0)


def test_idle_consumer_uses_no_cpu() -> None:
    """A waiting consumer uses no CPU time."""
    queue = ReceiveQueue(4)
    used: list[float] = []

    def wait() -> None:
        before = time.thread_time()
        queue.consume(1)
        used.append(time.thread_time() - before)

    consumer = threading.Thread(target=wait)
    consumer.start()
    consumer.join(0.5)  # the idle time, not a deadline
    assert consumer.is_alive()
    queue.publish(column([1]))
    consumer.join()
    assert used[0] < 0.05


def test_wake_ends_the_wait() -> None:
    """A wake before the wait ends the next wait, once."""
    queue = ReceiveQueue(4)
    queue.wake()
    assert queue.consume(1) == []
    assert queue.consume(1, timeout=0.01) == []


def test_close_ends_every_wait() -> None:
    """A waiting publisher gets an error, and queued tuples can still be consumed."""
    queue = ReceiveQueue(1)
    with ThreadPoolExecutor(1) as pool:
        publishing = pool.submit(queue.publish, column([1, 2]))
        eventually(lambda: queue.statistics().population == 1)
        queue.close()
    with pytest.raises(ClosedError, match="its executor has stopped"):
        publishing.result()
    assert numbers(queue.consume(5)) == [1]
    assert queue.consume(5) == []
    with pytest.raises(ClosedError):
        queue.publish_to_overflow(column([3]))


def test_arrival_rate_and_sojourn_time() -> None:
    """The rate covers the last ten seconds; the sojourn time is the population divided by it."""
    now = [100.0]
    queue = ReceiveQueue(1000, lambda: now[0])
    for _ in range(20):
        queue.publish(column(range(30)))
        queue.consume(1000)
        now[0] += 1
        queue.statistics()  # as a worker does each second
    assert queue.statistics().arrival_rate == 30
    queue.publish_to_overflow(column(range(60)))
    assert queue.statistics().sojourn_seconds == 2.0
    for _ in range(12):
        now[0] += 1
        queue.statistics()
    assert (queue.statistics().arrival_rate, queue.statistics().arrived) == (0, 660)
