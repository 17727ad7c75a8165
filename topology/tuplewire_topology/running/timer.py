"""What recurs in a worker: ticks, loads.

Source: Storm's `StormTimer`, `Time` with its simulated time, and `Executor.setupTicks`.
"""

from __future__ import annotations

import heapq
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import partial
from itertools import count

from tuplewire.errors import ClosedError, ConfigError
from tuplewire_topology.authoring.tuples import AddressedTuples, tick
from tuplewire_topology.running.idle import IdleWatch

Action = Callable[[], None]
Cancel = Callable[[], None]
"""Has an action be called no more; it may be being called just then."""


class Timer(ABC):
    """Calls actions every so often: in the order of time, and else of their adding. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._heap: list[tuple[float, int, float, Action]] = []
        self._order = count()
        self._closed = False

    @abstractmethod
    def _now(self) -> float:
        """Return the time, in seconds."""

    def every(self, period: float, action: Action) -> Cancel:
        """Call an action every so many seconds, first after one period; it must not wait for anything.

        Raises ConfigError for a period that is not over 0.
        """
        if not period > 0:
            raise ConfigError(f"what recurs does so every so many seconds, more than 0, not {period}")
        with self._changed:
            order = next(self._order)
            heapq.heappush(self._heap, (self._now() + period, order, period, action))
            self._changed.notify()
        return partial(self._cancel, order)

    def _cancel(self, order: int) -> None:
        with self._changed:
            self._heap = [entry for entry in self._heap if entry[1] != order]
            heapq.heapify(self._heap)

    def _pop(self, now: float) -> Action | None:
        """Return the next action that is due by now; it is due again one period after it was."""
        if not self._heap or self._heap[0][0] > now:
            return None
        due, order, period, action = self._heap[0]
        heapq.heapreplace(self._heap, (due + period, order, period, action))
        return action

    def close(self) -> None:
        """Call nothing more; does nothing the second time."""
        with self._changed:
            self._closed = True
            self._changed.notify()


class SystemTimer(Timer):
    """Goes with the clock, in a thread of its own. What is late is made up for once, not for each period.

    failed: told what an action raises; the timer then ends.
    """

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        super().__init__()
        self._failed = failed
        self._thread = threading.Thread(target=self._main, name="timer", daemon=True)
        self._thread.start()

    def _now(self) -> float:
        return time.monotonic()

    def _main(self) -> None:
        try:
            while (due := self._due()) is not None:
                for action in due:
                    action()
        except BaseException as error:  # noqa: BLE001 - whatever an action raises, its owner must hear of it
            self._failed(error)

    def _due(self) -> list[Action] | None:
        """Wait for what is due, and return each action once; None when closed."""
        with self._changed:
            while not self._closed:
                now = self._now()
                due: dict[Action, None] = {}
                while (action := self._pop(now)) is not None:
                    due[action] = None
                if due:
                    return list(due)
                self._changed.wait(self._heap[0][0] - now if self._heap else None)
            return None

    def close(self) -> None:
        """See Timer; also waits for the action that is being called, unless that is what closes it."""
        super().close()
        if threading.current_thread() is not self._thread:
            self._thread.join()


class SimulatedTimer(Timer):
    """Time goes on only when told to: for tests of a topology. Source: Storm's `Time.SimulatedTime`."""

    def __init__(self) -> None:
        super().__init__()
        self._time = 0.0

    def _now(self) -> float:
        return self._time

    def advance(self, seconds: float) -> None:
        """Let so many seconds pass, and call here, in the order of time, everything that is due in them."""
        with self._changed:
            end = self._time + seconds
        while (action := self._next(end)) is not None:
            action()

    def _next(self, end: float) -> Action | None:
        with self._changed:
            if self._closed or not self._heap or self._heap[0][0] > end:
                self._time = max(self._time, end)
                return None
            self._time = self._heap[0][0]
            return self._pop(self._time)


class Ticks:
    """The ticks of a worker's tasks. While its watch is paused they are kept back.

    tell: puts a column into the queue of its task; ClosedError when the executor has ended.
    """

    def __init__(self, timer: Timer, idle: IdleWatch, tell: Callable[[AddressedTuples], None]) -> None:
        self._timer = timer
        self._idle = idle
        self._tell = tell
        self._ticks: dict[int, Cancel] = {}
        self._waiting: set[int] = set()
        """The tasks that have not come to their last tick yet; they get no other then."""
        self._late: dict[int, AddressedTuples] = {}
        """The ticks that were kept back, by task."""

    def add(self, task: int, seconds: float) -> None:
        """Give a task a tick every so many seconds."""
        self._waiting.discard(task)
        self._late.pop(task, None)
        column = AddressedTuples(task, [tick(seconds)], partial(self._waiting.discard, task))
        self._ticks[task] = self._timer.every(seconds, partial(self._give, column))

    def give_last(self, tasks: Iterable[int]) -> None:
        """Give those of these tasks that get ticks the one that says that all is over."""
        for task in tasks:
            if task in self._ticks:
                self._waiting.discard(task)
                self._give(AddressedTuples(task, [tick(0)], partial(self._waiting.discard, task)))

    def catch_up(self) -> None:
        """Give those that were kept back, each once."""
        late, self._late = self._late, {}
        for task, column in late.items():
            if task in self._ticks:
                self._give(column)

    def remove(self, tasks: Iterable[int]) -> None:
        """Give these tasks no more; those that have none are left alone."""
        for task in tasks:
            if task in self._ticks:
                self._ticks.pop(task)()

    def close(self) -> None:
        """Give no more."""
        self.remove(list(self._ticks))

    def _give(self, column: AddressedTuples) -> None:
        if column.task in self._waiting:
            return
        if not self._idle.enter():
            self._late[column.task] = column
            return
        self._waiting.add(column.task)
        try:
            self._tell(column)
        except ClosedError:
            return  # the executor has ended, and needs none
        finally:
            self._idle.executed(1)
