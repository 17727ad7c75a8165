"""Tick tuples: they tell bolts that time has passed. Source: Storm's `Executor.setupTicks`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tuplewire.errors import ClosedError
from tuplewire.topology.running.idle import IdleWatch
from tuplewire.topology.running.receive_queue import AddressedTuples
from tuplewire.topology.running.timer import Cancel, Timer
from tuplewire.topology.tuples import tick


class Ticks:
    """The ticks of a worker's tasks. While its watch is paused they are kept back.

    tell: puts a column into the queue of its task; ClosedError when the executor has ended.
    """

    def __init__(self, timer: Timer, idle: IdleWatch, tell: Callable[[AddressedTuples], None]) -> None:
        self._timer = timer
        self._idle = idle
        self._tell = tell
        self._ticks: dict[int, _TicksOfTask] = {}
        self._cancels: dict[int, Cancel] = {}
        self._late: dict[int, _TicksOfTask] = {}

    def add(self, task: int, seconds: float) -> None:
        """Give a task a tick every so many seconds."""
        ticks = self._ticks[task] = _TicksOfTask(task, seconds)
        self._cancels[task] = self._timer.every(seconds, lambda: self._give(ticks))

    def give(self) -> None:
        """Give each task that gets ticks one now."""
        for ticks in list(self._ticks.values()):
            self._give(ticks)

    def remove(self, tasks: Iterable[int]) -> None:
        """Give these tasks no more; those that have none are left alone."""
        for task in tasks:
            if task in self._cancels:
                self._cancels.pop(task)()
                del self._ticks[task]
            self._late.pop(task, None)

    def catch_up(self) -> None:
        """Give those that were kept back, each once."""
        late, self._late = self._late, {}
        for ticks in late.values():
            self._give(ticks)

    def close(self) -> None:
        """Give no more."""
        self.remove(list(self._cancels))

    def _give(self, ticks: _TicksOfTask) -> None:
        if ticks.waits:
            return
        if not self._idle.enter():
            self._late[ticks.task] = ticks
            return
        ticks.waits = True
        try:
            self._tell(ticks.column)
        except ClosedError:
            return  # the executor has ended, and needs none
        finally:
            self._idle.executed(1)


class _TicksOfTask:
    """One task's ticks. waits: whether it has not come to the last one yet; it then gets no other."""

    def __init__(self, task: int, seconds: float) -> None:
        self.task = task
        self.waits = False
        self.column = AddressedTuples(task, [tick(seconds)], self._done)

    def _done(self) -> None:
        self.waits = False
