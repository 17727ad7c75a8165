"""Three workers between which a task moves, and that are replaced."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from helpers import eventually
from helpers.ports import free_port
from helpers.topology import assign, has_ended, one_worker
from tuplewire.connection.control_client import ControlClient
from tuplewire_service.launching.local_workers import Endpoint

TASK = 1
ELSEWHERE = {"a": 2, "b": 3, "c": 4}
"""A task for each worker that stays, so that the assignment has them all."""


class Workers:
    """Three workers, and where the task is."""

    def __init__(self, directory: Path, stack: ExitStack, drain_seconds: int = 1) -> None:
        self._flag = f"--drain-seconds={drain_seconds}"
        self._directory = directory
        self._stack = stack
        self._version = 0
        self.running: dict[str, Endpoint] = {}
        for name in ELSEWHERE:
            self.start(name)

    def start(self, name: str) -> None:
        """Start a worker, also again at another port."""
        self.running[name] = self._stack.enter_context(
            one_worker(name, self._flag, directory=self._directory, port=free_port())
        )

    def put(self, owner: str) -> None:
        """Move the task, and wait until all workers know."""
        self._version += 1
        tasks = {each: [ELSEWHERE[name]] for name, each in self.running.items()}
        tasks[self.running[owner]].append(TASK)
        for each in self.running.values():
            assign(each, self._version, tasks)
        for each in self.running.values():
            with ControlClient(each.address) as control:
                control.wait_ready(20)

    def drain(self, name: str) -> None:
        """Have a worker drain that has nothing to hand over, and wait until its process is over."""
        endpoint = self.running.pop(name)
        with ControlClient(endpoint.address) as control:
            control.drain()
        eventually(lambda: has_ended(endpoint), 20, "it has ended")
