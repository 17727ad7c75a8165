"""What recurs in a worker: ticks, loads. Source: Storm's `StormTimer`, and `Time` with its simulated time."""

from __future__ import annotations

import heapq
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from itertools import count

from tuplewire.errors import ConfigError

Action = Callable[[], None]
Cancel = Callable[[], None]
"""Has an action be called no more; it may be being called just then."""


class Schedule:
    """What is due when; pure. Actions due at one time come in the order in which they were added."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, float, Action]] = []
        self._order = count()

    def add(self, period: float, action: Action, now: float) -> int:
        """Have an action be due every so many seconds, first after one period; ConfigError if not over 0.

        Returns what remove() wants.
        """
        if not period > 0:
            raise ConfigError(f"what recurs does so every so many seconds, more than 0, not {period}")
        order = next(self._order)
        heapq.heappush(self._heap, (now + period, order, period, action))
        return order

    def remove(self, order: int) -> None:
        """Have an action be due no more; does nothing the second time."""
        self._heap = [entry for entry in self._heap if entry[1] != order]
        heapq.heapify(self._heap)

    @property
    def next_due(self) -> float | None:
        """When the next action is due; None when there is none."""
        return self._heap[0][0] if self._heap else None

    def pop(self, now: float) -> Action | None:
        """Return the next action that is due by now; it is due again one period after it was."""
        if not self._heap or self._heap[0][0] > now:
            return None
        due, order, period, action = self._heap[0]
        heapq.heapreplace(self._heap, (due + period, order, period, action))
        return action


class Timer(ABC):
    """Calls actions every so often. Thread-safe."""

    @abstractmethod
    def every(self, period: float, action: Action) -> Cancel:
        """Call an action every so many seconds, first after one period; it must not wait for anything."""

    @abstractmethod
    def close(self) -> None:
        """Call nothing more; does nothing the second time."""


class SystemTimer(Timer):
    """Goes with the clock, in a thread of its own. What is late is made up for once, not for each period.

    failed: told what an action raises; the timer then ends.
    """

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        self._failed = failed
        self._changed = threading.Condition()
        self._schedule = Schedule()
        self._closed = False
        self._thread = threading.Thread(target=self._main, name="timer", daemon=True)
        self._thread.start()

    def every(self, period: float, action: Action) -> Cancel:
        """See Timer."""
        with self._changed:
            order = self._schedule.add(period, action, time.monotonic())
            self._changed.notify()
        return partial(self._cancel, order)

    def _cancel(self, order: int) -> None:
        with self._changed:
            self._schedule.remove(order)

    def _main(self) -> None:
        try:
            while True:
                due = self._due()
                if due is None:
                    return
                for action in due:
                    action()
        except Exception as error:  # noqa: BLE001 - whatever an action raises, its owner must hear of it
            self._failed(error)

    def _due(self) -> list[Action] | None:
        """Wait for what is due, and return each action once; None when closed."""
        with self._changed:
            while not self._closed:
                now = time.monotonic()
                due: dict[Action, None] = {}
                while (action := self._schedule.pop(now)) is not None:
                    due[action] = None
                if due:
                    return list(due)
                next_due = self._schedule.next_due
                self._changed.wait(None if next_due is None else next_due - now)
            return None

    def close(self) -> None:
        """See Timer; also waits for the action that is being called, unless that is what closes it."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()


class SimulatedTimer(Timer):
    """Time goes on only when told to: for tests of a topology. Source: Storm's `Time.SimulatedTime`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._schedule = Schedule()
        self._now = 0.0
        self._closed = False

    def every(self, period: float, action: Action) -> Cancel:
        """See Timer."""
        with self._lock:
            order = self._schedule.add(period, action, self._now)
        return partial(self._cancel, order)

    def _cancel(self, order: int) -> None:
        with self._lock:
            self._schedule.remove(order)

    def advance(self, seconds: float) -> None:
        """Let so many seconds pass, and call here, in the order of time, everything that is due in them."""
        with self._lock:
            end = self._now + seconds
        while (action := self._next(end)) is not None:
            action()

    def _next(self, end: float) -> Action | None:
        with self._lock:
            next_due = self._schedule.next_due
            if self._closed or next_due is None or next_due > end:
                self._now = max(self._now, end)
                return None
            self._now = next_due
            return self._schedule.pop(next_due)

    def close(self) -> None:
        """See Timer."""
        with self._lock:
            self._closed = True
