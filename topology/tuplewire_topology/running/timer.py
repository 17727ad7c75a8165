"""Timers, and the ticks of a worker's tasks.

Used by executor_group.py, also for heartbeats, loads and timeouts, and by local clusters. Owns the thread of
SystemTimer. Thread-safe. Exception: one thread at a time may use TickScheduler. Design:
docs/design/acking.md. Source: Storm's `StormTimer`, `Time` with simulated time, and `Executor.setupTicks`.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from itertools import count

from tuplewire.errors import ClosedError
from tuplewire_topology.authoring.tuples import AddressedTuples, tick
from tuplewire_topology.running.tuple_transfer import TupleCounter

Action = Callable[[], None]
Cancel = Callable[[], None]
"""Stops future calls of an action. A call may still be running."""


class Timer:
    """Calls actions periodically, in the order of their times, then of every(). Thread-safe."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._changed = threading.Condition()
        self._heap: list[tuple[float, int, float, Action]] = []
        self._sequence = count()  # identifies an action, and orders equal times

    def every(self, period: float, action: Action) -> Cancel:
        """Call an action every `period` seconds (above 0), first after one period. It must not block."""
        with self._changed:
            sequence = next(self._sequence)
            heapq.heappush(self._heap, (self._now() + period, sequence, period, action))
            self._changed.notify()  # it may be due before the action that the thread waits for
        return partial(self._cancel, sequence)

    def _cancel(self, sequence: int) -> None:
        with self._changed:
            self._heap = [entry for entry in self._heap if entry[1] != sequence]
            heapq.heapify(self._heap)

    def _pop_due(self, now: float) -> tuple[float, Action] | None:
        """Return the next action due by now, with its due time, and schedule it one period later."""
        if not self._heap or self._heap[0][0] > now:
            return None
        due_time, sequence, period, action = self._heap[0]
        heapq.heapreplace(self._heap, (due_time + period, sequence, period, action))
        return due_time, action


class SystemTimer(Timer):
    """A timer on the system clock, with its own thread. A late action is called once for all missed periods.

    `on_failure` is called with an error that an action raises; the timer then ends.
    """

    def __init__(self, on_failure: Callable[[BaseException], None]) -> None:
        super().__init__(time.monotonic)
        self._on_failure = on_failure
        self._closed = False
        self._thread = threading.Thread(target=self._main, name="timer", daemon=True)
        self._thread.start()

    def _main(self) -> None:
        try:
            while (due_actions := self._wait_for_due()) is not None:
                for action in due_actions:
                    action()
        except BaseException as error:  # noqa: BLE001 - the owner must get every error of an action
            self._on_failure(error)

    def _wait_for_due(self) -> list[Action] | None:
        """Wait until actions are due, and return each of them once; None after close()."""
        with self._changed:
            while not self._closed:
                now = self._now()
                due: dict[Action, None] = {}  # an ordered set: an action may be due several times
                while (next_action := self._pop_due(now)) is not None:
                    due[next_action[1]] = None
                if due:
                    return list(due)
                self._changed.wait(self._heap[0][0] - now if self._heap else None)
            return None

    def close(self) -> None:
        """Stop all calls, and wait for a running action, unless that action is the caller. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()


class SimulatedTimer(Timer):
    """A timer for tests, which advances only by advance(). Source: Storm's `Time.SimulatedTime`."""

    def __init__(self) -> None:
        super().__init__(lambda: self._time)
        self._time = 0.0

    def advance(self, seconds: float) -> None:
        """Advance the time, and call the actions that are due, in order of time, on this thread."""
        end = self._time + seconds
        while True:
            with self._changed:
                due_action = self._pop_due(end)
                self._time = end if due_action is None else due_action[0]
            if due_action is None:
                return
            due_action[1]()


class TickScheduler:
    """The ticks of a worker's tasks. Ticks that are due while the tuple counter is paused are omitted.

    `put` queues a column for its task, and raises ClosedError if the executor has stopped.
    """

    def __init__(self, timer: Timer, counter: TupleCounter, put: Callable[[AddressedTuples], None]) -> None:
        self._timer = timer
        self._counter = counter
        self._put = put
        self._ticks: dict[int, Cancel] = {}
        self._unprocessed: set[int] = set()
        """Tasks that have not executed their latest tick. They get no other tick until then."""

    def add(self, task: int, seconds: float) -> None:
        """Send a task a tick every `seconds`."""
        self._unprocessed.discard(task)
        self._ticks[task] = self._timer.every(seconds, partial(self._enqueue_tick, task, seconds))

    def send_final(self, tasks: Iterable[int]) -> None:
        """Send the final tick to each of these tasks that gets ticks."""
        for task in self._ticks.keys() & tasks:
            self._unprocessed.discard(task)  # the final tick is never skipped
            self._enqueue_tick(task, 0)

    def remove(self, tasks: Iterable[int]) -> None:
        """Stop the ticks of these tasks; tasks without ticks are ignored."""
        for task in self._ticks.keys() & tasks:
            self._ticks.pop(task)()

    def _enqueue_tick(self, task: int, seconds: float) -> None:
        # A slow task gets no backlog of ticks.
        if task in self._unprocessed or not self._counter.try_add():
            return
        self._unprocessed.add(task)
        try:
            self._put(AddressedTuples(task, [tick(seconds)], partial(self._unprocessed.discard, task)))
        except ClosedError:
            return  # the executor has stopped, and needs no ticks
        finally:
            self._counter.add(-1)  # the count of try_add(); `put` has counted the queued tick
