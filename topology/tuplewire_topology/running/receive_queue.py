"""The receive queue of an executor: bounded, filled and emptied in batches. Source: Storm's `JCQueue`.

It holds columns, each the tuples of one task, and counts tuples. Whoever waits, for tuples or for room, waits
on a condition and uses no CPU.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from tuplewire.errors import ClosedError, ConfigError
from tuplewire_topology.authoring.tuples import AddressedTuples

_WINDOW_SECONDS = 10


@dataclass(frozen=True, slots=True)
class QueueStatistics:
    """A snapshot of a queue; all but the times are in tuples. Source: Storm's `JCQueue.QueueMetrics`.

    population: in the queue. overflow: those of them that are over the capacity. arrived: so far.
    arrival_rate: per second, over the last ten. sojourn_seconds: how long a tuple waits, by Little's law; 0
    while none arrives.
    """

    population: int
    capacity: int
    arrived: int
    arrival_rate: float

    @property
    def fill(self) -> float:
        """How full the queue is, from 0 to 1."""
        return min(1.0, self.population / self.capacity)

    @property
    def overflow(self) -> int:
        """Tuples over the capacity."""
        return max(0, self.population - self.capacity)

    @property
    def sojourn_seconds(self) -> float:
        """How long a tuple waits, on average."""
        return self.population / self.arrival_rate if self.arrival_rate else 0.0


class RateTracker:
    """Counts per second over the last ten full seconds, or since the start. Source: Storm's `RateTracker`."""

    def __init__(self, now: float) -> None:
        self._started = now
        self._second = int(now)
        self._buckets = deque([0] * (_WINDOW_SECONDS + 1), _WINDOW_SECONDS + 1)

    def count(self, amount: int, now: float) -> None:
        """Count so many at a time in seconds, which never goes back."""
        self._turn(now)
        self._buckets[-1] += amount

    def rate(self, now: float) -> float:
        """Return the average per second."""
        self._turn(now)
        full_seconds = min(self._second - self._started, float(_WINDOW_SECONDS))
        if full_seconds < 1:
            return sum(self._buckets) / max(now - self._started, 1.0)
        return (sum(self._buckets) - self._buckets[-1]) / full_seconds

    def _turn(self, now: float) -> None:
        passed = int(now) - self._second
        self._buckets.extend([0] * min(passed, _WINDOW_SECONDS + 1))
        self._second += passed


class ReceiveQueue:
    """A bounded queue with any number of publishers and one consumer; thread-safe.

    capacity: tuples. clock: seconds that never go back.
    """

    def __init__(self, capacity: int, clock: Callable[[], float] = time.monotonic) -> None:
        if capacity < 1:
            raise ConfigError(f"a receive queue holds at least one tuple, not {capacity}")
        self.capacity = capacity
        self._clock = clock
        self._lock = threading.Lock()
        self._filled = threading.Condition(self._lock)
        self._emptied = threading.Condition(self._lock)
        self._columns: deque[AddressedTuples] = deque()
        self._population = 0
        self._arrived = 0
        self._rate = RateTracker(clock())
        self._awake = False
        self._closed = False
        self._waiting = 0

    def publish(self, column: AddressedTuples) -> None:
        """Add tuples, waiting for room as long as it takes; they enter in parts as room comes.

        Raises ClosedError when the queue is closed, now or meanwhile; what has entered by then stays. A
        column with `done` enters by publish_to_overflow only.
        """
        tuples = column.tuples
        with self._lock:
            while tuples:
                self._waiting += 1
                self._emptied.wait_for(lambda: self._population < self.capacity or self._closed)
                self._waiting -= 1
                room = self.capacity - self._population
                self._add(AddressedTuples(column.task, tuples[:room]))
                tuples = tuples[room:]

    def publish_to_overflow(self, column: AddressedTuples) -> None:
        """Add tuples at once, over the capacity where need be; ClosedError when the queue is closed.

        For those who must not wait, and whose tuples something else bounds: a sender's credit, or the number
        of tuples that a spout has pending.
        """
        with self._lock:
            self._add(column)

    def _add(self, column: AddressedTuples) -> None:
        if self._closed:
            raise ClosedError("the receive queue is closed: its executor has ended")
        count = len(column.tuples)
        self._columns.append(column)
        self._population += count
        self._arrived += count
        self._rate.count(count, self._clock())
        self._filled.notify()

    def consume(self, limit: int, timeout: float | None = None) -> list[AddressedTuples]:
        """Take columns, in order, until there are `limit` tuples or no more; the last one is taken whole.

        Waits for the first, at most so many seconds (None: without end); empty when there is none by then,
        after wake(), or when the queue is closed and empty.
        """
        with self._lock:
            self._filled.wait_for(lambda: self._columns or self._awake or self._closed, timeout)
            self._awake = False
            taken: list[AddressedTuples] = []
            count = 0
            while self._columns and count < limit:
                column = self._columns.popleft()
                taken.append(column)
                count += len(column.tuples)
            self._population -= count
            if count:
                self._emptied.notify_all()
            return taken

    def wake(self) -> None:
        """End the consumer's wait, or its next one, whether there is anything or not."""
        with self._lock:
            self._awake = True
            self._filled.notify()

    def close(self) -> None:
        """Take nothing more, and end every wait; what is queued can still be consumed."""
        with self._lock:
            self._closed = True
            self._filled.notify_all()
            self._emptied.notify_all()

    def close_if_unused(self) -> bool:
        """Close it unless something is queued, or waits for room; return whether it is closed."""
        with self._lock:
            if not self._columns and not self._waiting:
                self._closed = True
            return self._closed

    def statistics(self) -> QueueStatistics:
        """Return a snapshot."""
        with self._lock:
            rate = self._rate.rate(self._clock())
            return QueueStatistics(self._population, self.capacity, self._arrived, rate)

    @property
    def load(self) -> float:
        """How full the queue is, from 0 to 1."""
        with self._lock:
            return min(1.0, self._population / self.capacity)
