"""Three workers that are replaced, and a task that moves between them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from helpers import eventually
from helpers.ports import free_port
from helpers.topology import assign, has_ended, one_worker, ready
from tuplewire.connection.control_client import ControlClient
from tuplewire.processes.worker_processes import Endpoint

TASK = 1
ELSEWHERE = {"a": 2, "b": 3, "c": 4}
"""A task that stays at each worker, so that the assignment contains all workers."""


@contextmanager
def three_workers(directory: Path, drain_seconds: int = 1) -> Iterator[Workers]:
    """Run three workers, with the task at the first."""
    with ExitStack() as stack:
        running = Workers(directory, stack, drain_seconds)
        running.put("a")
        yield running
        running.discard()


class Workers:
    """Three workers, and the current owner of the task."""

    def __init__(
        self, directory: Path, stack: ExitStack, drain_seconds: int = 1, flags: Sequence[str] = ()
    ) -> None:
        self._flags = f"--drain-seconds={drain_seconds}", *flags
        self._directory = directory
        self._stack = stack
        self._version = self._starts = 0
        self.owner = ""
        """The worker that owns the task."""
        self._ports: dict[str, int] = {}
        self.running: dict[str, Endpoint] = {}
        for name in ELSEWHERE:
            self.start(name)

    def start(self, name: str, *, same_port: bool = False) -> None:
        """Start or restart a worker, on a new port or on the same port."""
        port = self._ports[name] = self._ports[name] if same_port else free_port()
        self._starts += 1
        home = self._directory / str(self._starts)
        home.mkdir()
        self.running[name] = self._stack.enter_context(
            one_worker(name, *self._flags, directory=home, port=port)
        )

    def put(self, owner: str, told: Sequence[str] | None = None) -> None:
        """Move the task, and wait for all workers; or notify only the workers in `told`, and do not wait."""
        self._version += 1
        self.owner = owner
        tasks = {each: [ELSEWHERE[name]] for name, each in self.running.items()}
        tasks[self.running[owner]].append(TASK)
        for name in self.running if told is None else told:
            assign(self.running[name], self._version, tasks)
        if told is None:
            ready(*self.running.values(), seconds=20)

    def replace(self, name: str, other: str) -> None:
        """Drain and restart a worker while another one owns the task."""
        self.put(other)
        self.drain(name)
        self.start(name)
        self.put(other)

    def discard(self) -> None:
        """Kill the running workers: a drain would wait for messages that no consumer takes."""
        for each in self.running.values():
            if not has_ended(each):
                os.kill(each.process_id, signal.SIGKILL)

    def drain(self, name: str, seconds: float | None = None) -> None:
        """Drain a worker, for its configured time or another one, and wait for the exit of its process."""
        endpoint = self.running.pop(name)
        with ControlClient(endpoint.address) as control:
            control.drain(seconds)
        eventually(lambda: has_ended(endpoint), 60, "it has ended")
