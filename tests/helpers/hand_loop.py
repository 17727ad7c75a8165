"""An event loop that a test runs step by step, without files, threads and a clock; and processes on it."""

from __future__ import annotations

import asyncio
import contextvars
import math
from collections import defaultdict
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar
from weakref import WeakSet

from tuplewire.connection.loop import EventLoopThread

process_name: contextvars.ContextVar[str] = contextvars.ContextVar("process", default="")

_Result = TypeVar("_Result")


class _NoFiles:
    def select(self, timeout: float | None = None) -> list[Any]:  # noqa: ARG002 - nothing is waited for
        return []


class HandLoop(asyncio.BaseEventLoop):
    """A loop without files, threads and clock. A call to its executor runs immediately and completely."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = _NoFiles()
        self._now = 0.0
        self._begun: list[asyncio.Task[Any]] = []
        self._tasks: defaultdict[str, dict[asyncio.Task[Any], None]] = defaultdict(dict)
        self.defects: list[str] = []
        """Unhandled errors."""
        self.set_exception_handler(lambda _, context: self.defects.append(repr(context)))
        self.set_task_factory(self._make_task)

    def time(self) -> float:
        return self._now

    def _process_events(self, events: list[Any]) -> None:
        """There are no events."""

    def _write_to_self(self) -> None:
        """Do nothing: the loop does not wait for files."""

    def _make_task(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> Any:
        task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **options)
        tasks = self._tasks[process_name.get()]
        tasks[task] = None
        task.add_done_callback(tasks.pop)
        return task

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]  # noqa: ARG002
        return self.create_task(self._called(partial(func, *args)))

    async def _called(self, function: Callable[[], Any]) -> Any:
        self._begun.clear()
        result = function()
        for task in list(self._begun):
            value = await task
            if result is task:
                result = value
        return result

    def begin(self, coroutine: Coroutine[Any, Any, _Result]) -> asyncio.Task[_Result]:
        task = self.create_task(coroutine)
        self._begun.append(task)
        return task

    def inside(self, function: Callable[[], _Result], process: str = "") -> _Result:
        """Call a function on the loop, as a part of a process, and settle."""

        async def call() -> _Result:
            return function()

        context = contextvars.copy_context()
        context.run(process_name.set, process)
        result = self.run_until_complete(context.run(self.create_task, call()))
        self.settle()
        return result

    def settle(self) -> None:
        """Run the loop until nothing remains to do at this time."""
        ready: Any = self._ready  # type: ignore[attr-defined]
        while ready:
            self.call_soon(self.stop)
            self.run_forever()
        assert not self.defects, self.defects

    def pass_time(self, seconds: float) -> None:
        """Advance the clock, running each timer when it is due."""
        until = self._now + seconds
        self.settle()
        while (due := self._next_timer()) <= until:
            # A timer that is early by a rounding error would be set again for now, without end.
            self._now = max(self._now, due) + 1e-6
            self.call_soon(self.stop)
            self.run_forever()
            self.settle()
        self._now = max(self._now, until)

    def _next_timer(self) -> float:
        timers: Any = self._scheduled  # type: ignore[attr-defined]
        return timers[0].when() if timers else math.inf

    @property
    def processes(self) -> list[str]:
        """The names of all processes that have ever started a task."""
        return list(self._tasks)

    def kill(self, process: str) -> None:
        """Cancel all tasks of a process."""
        tasks = self._tasks[process]
        while tasks:  # a task that is already ending may ignore the first cancellation
            for task in list(tasks):
                task.cancel()
            self.settle()


class HandThread(EventLoopThread):
    """The loop, for code that expects the thread of a loop."""

    def __init__(self, loop: HandLoop) -> None:
        self.loop = loop
        self._hand = loop
        self.suspendables = WeakSet()
        self.fork_blocking_servers = 0
        self._suspended = False

    @property
    def is_current_thread(self) -> bool:
        return True

    def run(self, coroutine: Coroutine[Any, Any, Any], timeout: float | None = None) -> Any:  # noqa: ARG002
        """Start a coroutine; the loop's executor waits for it."""
        return self._hand.begin(coroutine)
