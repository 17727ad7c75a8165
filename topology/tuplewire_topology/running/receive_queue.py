"""The receive queue of an executor: bounded in tuples, filled and emptied in columns, each of one task.

Used by executor.py, which consumes, and by tuple_transfer.py, which publishes. Owns the queued tuples.
Thread-safe. Design: docs/design/acking.md. Source: Storm's `JCQueue`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from tuplewire.errors import ClosedError
from tuplewire_topology.authoring.tuples import AddressedTuples

_MAX_SAMPLES = 11
_MIN_SAMPLE_SECONDS = 0.9
"""The least time between samples. A worker takes one each second, and its timer may be early."""


@dataclass(frozen=True, slots=True)
class QueueStatistics:
    """A snapshot of a queue, in tuples. Source: Storm's `JCQueue.QueueMetrics` and `RateTracker`."""

    population: int
    capacity: int
    arrived: int
    arrival_rate: float  # per second, over the last ten seconds

    @property
    def fill_ratio(self) -> float:
        """The used share of the capacity, 0 to 1."""
        return min(1.0, self.population / self.capacity)

    @property
    def overflow(self) -> int:
        """Tuples over the capacity."""
        return max(0, self.population - self.capacity)

    @property
    def sojourn_seconds(self) -> float:
        """The average wait of a tuple, by Little's law; 0 if no tuples arrive."""
        return self.population / self.arrival_rate if self.arrival_rate else 0.0


class ReceiveQueue:
    """A queue for `capacity` tuples, with any number of publishers and one consumer. Thread-safe."""

    def __init__(self, capacity: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.capacity = capacity
        self._clock = clock
        self._lock = threading.Lock()
        self._not_empty = threading.Condition(self._lock)
        self._not_full = threading.Condition(self._lock)
        self._columns: deque[AddressedTuples] = deque()
        self._population = 0  # in tuples
        self._arrived = 0
        self._samples = deque([(clock(), 0)], _MAX_SAMPLES)  # the time, and the tuples so far
        self._wake_requested = False
        self._closed = False
        self._blocked_publishers = 0  # publishers that wait for free space

    def publish(self, column: AddressedTuples) -> None:
        """Add tuples, waiting for free space without limit. They are added in parts, as space becomes free.

        Raises ClosedError if the queue is closed before the last part; parts already added stay. A column
        with `on_executed` must use publish_to_overflow.
        """
        tuples = column.tuples
        with self._lock:
            while tuples:
                self._blocked_publishers += 1
                self._not_full.wait_for(lambda: self._population < self.capacity or self._closed)
                self._blocked_publishers -= 1
                free = self.capacity - self._population
                self._add(AddressedTuples(column.task, tuples[:free]))  # raises if close() ended the wait
                tuples = tuples[free:]

    def publish_to_overflow(self, column: AddressedTuples) -> None:
        """Add tuples immediately, even over the capacity; ClosedError if the queue is closed.

        For callers that must not wait, with another bound: a sender's credit, or a spout's pending tuples.
        """
        with self._lock:
            self._add(column)

    def _add(self, column: AddressedTuples) -> None:
        if self._closed:
            raise ClosedError("the receive queue is closed: its executor has stopped")
        count = len(column.tuples)
        self._columns.append(column)
        self._population += count
        self._arrived += count
        self._not_empty.notify()

    def consume(self, limit: int, timeout: float | None = None) -> list[AddressedTuples]:
        """Remove and return whole columns, in order, until they have `limit` tuples or the queue is empty.

        Waits up to `timeout` seconds for the first (None: no limit), or until wake() or close().
        """
        with self._lock:
            self._not_empty.wait_for(lambda: self._columns or self._wake_requested or self._closed, timeout)
            self._wake_requested = False
            taken: list[AddressedTuples] = []
            count = 0
            while self._columns and count < limit:
                column = self._columns.popleft()
                taken.append(column)
                count += len(column.tuples)
            self._population -= count
            if count:  # the space may be enough for several publishers
                self._not_full.notify_all()
            return taken

    def wake(self) -> None:
        """End the consumer's current or next wait, even without tuples."""
        with self._lock:
            self._wake_requested = True
            self._not_empty.notify()

    def close(self) -> None:
        """Reject more tuples, and end every wait; queued tuples can still be consumed."""
        with self._lock:
            self._closed = True
            self._not_empty.notify_all()
            self._not_full.notify_all()

    def close_if_empty(self) -> bool:
        """Close the queue unless tuples are queued or wait for free space; return True if it is closed."""
        with self._lock:
            if not self._columns and not self._blocked_publishers:
                self._closed = True
            return self._closed

    def statistics(self) -> QueueStatistics:
        """Return a snapshot. Call this about once a second: the arrival rate is of the last ten samples."""
        with self._lock:
            now = self._clock()
            if now - self._samples[-1][0] >= _MIN_SAMPLE_SECONDS:
                self._samples.append((now, self._arrived))
            (began, before), (ended, arrived) = self._samples[0], self._samples[-1]
            rate = (arrived - before) / (ended - began) if ended > began else float(self._arrived)
            return QueueStatistics(self._population, self.capacity, self._arrived, rate)
