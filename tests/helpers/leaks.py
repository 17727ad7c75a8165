"""Detection of threads, child processes and asyncio tasks that a test leaves running."""

from __future__ import annotations

import asyncio
import asyncio.runners
import os
import threading
import time
from asyncio import AbstractEventLoop, BaseEventLoop, Task
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

from helpers import fork_server

_GRACE_SECONDS = 3.0

# These belong to the interpreter, not to a test: the JVM of PySpark, and helpers of multiprocessing.
_KEPT_PROCESSES = (
    "java",
    "org.apache.spark",
    "multiprocessing.resource_tracker",
    "multiprocessing.forkserver",
)

_loops: WeakSet[AbstractEventLoop] = WeakSet()
_left_by_runners: list[Task[Any]] = []


def install() -> None:
    """Start to record every event loop, and the tasks that asyncio.run() would cancel at its end."""
    make = BaseEventLoop.__init__
    cancel_all: Any = asyncio.runners._cancel_all_tasks  # type: ignore[attr-defined]

    def noted(loop: BaseEventLoop) -> None:
        make(loop)
        _loops.add(loop)

    def asked(loop: AbstractEventLoop) -> None:
        if tasks := asyncio.all_tasks(loop):
            _, pending = loop.run_until_complete(asyncio.wait(tasks, timeout=1.0))
            _left_by_runners.extend(pending)
        cancel_all(loop)

    BaseEventLoop.__init__ = noted  # type: ignore[assignment, method-assign]
    asyncio.runners._cancel_all_tasks = asked  # type: ignore[attr-defined]


def children() -> dict[int, str]:
    """Return this process's children and their command lines; `defunct` for a child that has exited."""
    found: dict[int, str] = {}
    for thread in os.listdir("/proc/self/task"):  # noqa: PTH208 - it is done twice for each test
        for child in _read(f"/proc/self/task/{thread}/children").split():
            # pid (name) state ppid ...; the name may hold spaces and brackets
            ended = _read(f"/proc/{child}/stat").rpartition(")")[2].startswith(" Z")
            command = "defunct" if ended else _read(f"/proc/{child}/cmdline").replace("\0", " ").strip()
            if int(child) != fork_server.server_id() and not any(kept in command for kept in _KEPT_PROCESSES):
                found[int(child)] = command
    return found


def _read(path: str) -> str:
    """Return the text of a file of /proc that fits one read; empty if the process no longer exists."""
    try:
        file = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return ""
    try:
        return os.read(file, 1 << 16).decode(errors="replace")
    except ProcessLookupError:
        return ""
    finally:
        os.close(file)


def _running() -> dict[object, str]:
    """Return everything that is running now and should not outlive a test."""
    running: dict[object, str] = {t: f"thread {t.name}" for t in threading.enumerate() if not t.daemon}
    for pid, command in children().items():
        running[pid] = f"child process {pid}: {command}"
    for loop in list(_loops):
        if not loop.is_closed():
            running.update((task, f"asyncio task {task!r}") for task in asyncio.all_tasks(loop))
    return running


@contextmanager
def no_leaks() -> Iterator[None]:
    """Fail if something started in the block is still running shortly after the block."""
    before = _running().keys()
    _left_by_runners.clear()
    yield
    deadline = time.monotonic() + _GRACE_SECONDS
    while (left := {key: text for key, text in _running().items() if key not in before}) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.01)
    found = [
        *left.values(),
        *(f"asyncio task {task!r}, cancelled by asyncio.run" for task in _left_by_runners),
    ]
    assert not found, "the test left behind:\n" + "\n".join(found)
