"""The receive queue of an executor: bounds, waits, and what it says of itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

import pytest

from tuplewire.errors import ClosedError
from tuplewire_service.testing import eventually
from tuplewire_topology import Stream, Tuple
from tuplewire_topology.authoring.tuples import AddressedTuples, TupleSource
from tuplewire_topology.running.receive_queue import ReceiveQueue

SOURCE = TupleSource("spout", 1, Stream("number"))


def column(numbers: Iterable[int], task: int = 2) -> AddressedTuples:
    """Return tuples that carry numbers."""
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
    """What does not fit waits outside; the queue never holds more than its capacity, and nothing is lost."""
    queue = ReceiveQueue(7)
    publishers = [threading.Thread(target=queue.publish, args=(column(range(100), task),)) for task in (1, 2)]
    for publisher in publishers:
        publisher.start()
    taken: list[AddressedTuples] = []
    while sum(len(each.tuples) for each in taken) < 200:
        assert queue.statistics().population <= 7
        taken += queue.consume(3, timeout=10)
    for publisher in publishers:
        publisher.join()
    for task in (1, 2):
        assert numbers(each for each in taken if each.task == task) == list(range(100))


def test_overflow_does_not_wait() -> None:
    """What must not wait goes over the capacity, and shows as overflow until it is taken."""
    queue = ReceiveQueue(4)
    queue.publish_to_overflow(column(range(10)))
    seen = queue.statistics()
    assert (seen.population, seen.capacity, seen.fill, seen.overflow) == (10, 4, 1.0, 6)
    queue.consume(1)
    assert (queue.statistics().population, queue.statistics().overflow, queue.statistics().fill) == (
        0,
        0,
        0.0,
    )


def test_idle_consumer_uses_no_cpu() -> None:
    """Whoever waits for tuples sleeps on a condition: no time of its thread is used."""
    queue = ReceiveQueue(4)
    used: list[float] = []

    def wait() -> None:
        before = time.thread_time()
        queue.consume(1)
        used.append(time.thread_time() - before)

    consumer = threading.Thread(target=wait)
    consumer.start()
    consumer.join(0.5)  # the time that it is idle, not one that it is given
    assert consumer.is_alive()
    queue.publish(column([1]))
    consumer.join()
    assert used[0] < 0.05


def test_wake_ends_the_wait() -> None:
    """A wake before the wait ends it as well; it counts once."""
    queue = ReceiveQueue(4)
    queue.wake()
    assert queue.consume(1) == []
    assert queue.consume(1, timeout=0.01) == []


def test_close_ends_every_wait() -> None:
    """A publisher that waits for room hears of the end; what is in the queue can still be taken."""
    queue = ReceiveQueue(1)
    raised: list[ClosedError] = []

    def publish() -> None:
        try:
            queue.publish(column([1, 2]))
        except ClosedError as error:
            raised.append(error)

    publisher = threading.Thread(target=publish)
    publisher.start()
    eventually(lambda: queue.statistics().population == 1)
    queue.close()
    publisher.join()
    assert "its executor has stopped" in str(raised[0])
    assert numbers(queue.consume(5)) == [1]
    assert queue.consume(5) == []
    with pytest.raises(ClosedError):
        queue.publish_to_overflow(column([3]))


def test_arrival_rate_and_sojourn_time() -> None:
    """The rate is of the last ten seconds; the sojourn time follows from it and the population."""
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


def test_rate_before_the_first_second_is_over() -> None:
    """A rate needs a second; until then what has come counts as that second's."""
    queue = ReceiveQueue(1000, lambda: 5.25)
    queue.publish(column(range(10)))
    assert queue.statistics().arrival_rate == 10
