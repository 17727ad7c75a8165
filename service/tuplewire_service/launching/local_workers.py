"""Workers as local subprocesses: local mode, demos and tests."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import UnreachableError
from tuplewire.identity.credentials import Credentials
from tuplewire.processes import Child, LaunchError, bound_addresses, private_directory, worker_command
from tuplewire_service.control.status_messages import assignment_to_wire
from tuplewire_service.worker.assignment import AssignedWorker, Assignment

_START_SECONDS = 30.0
_READY_SECONDS = 30.0
_STOP_MARGIN_SECONDS = 10.0
_NONE = Credentials()


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where one worker is reached: by other workers, by programs on this machine, by Prometheus."""

    worker_id: str
    address: str
    unix_address: str
    metrics_url: str
    process_id: int
    peer_address: str = ""
    """Where other workers reach it, if not at its address."""


class LocalWorkers:
    """Starts so many workers of one topology and ends them with the block.

    count: how many; they are called worker-0, worker-1, ... directory: where their sockets and logs go, a
    temporary one (removed at the end) without it. flags: more flags for each `tuplewire worker`.
    drain_seconds: how long each may drain. credentials: what assign() shows, where flags ask for it.

    Guarantee: the workers do not outlive this process, even when it is killed: each stops when its standard
    input, which this process holds open, ends. TUPLEWIRE_* variables of this process do not reach them.
    """

    def __init__(
        self,
        count: int,
        topology: str,
        *,
        directory: Path | None = None,
        flags: Sequence[str] = (),
        drain_seconds: float = 10.0,
        credentials: Credentials = _NONE,
    ) -> None:
        self.topology = topology
        self.endpoints: list[Endpoint] = []
        self.directory = directory
        self.exit_codes: list[int] = []
        self._count = count
        self._flags = tuple(flags)
        self._drain_seconds = drain_seconds
        self._credentials = credentials
        self._temporary: str | None = None
        self._children: list[Child] = []
        self._version = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        alive = sum(child.poll() is None for child in self._children)
        return f"<LocalWorkers {self.topology}: {alive} of {self._count} alive>"

    def start(self, timeout: float = _START_SECONDS) -> None:
        """Start the workers and wait until each has bound its addresses; LaunchError when one does not."""
        if self.directory is None:
            self._temporary = private_directory()
            self.directory = Path(self._temporary)
        deadline = time.monotonic() + timeout
        try:
            for index in range(self._count):
                name, log = f"worker-{index}", self.log_of(index)
                command = worker_command(
                    name, self.topology, log, drain_seconds=self._drain_seconds, flags=self._flags
                )
                self._children.append(Child(command))
            for child in self._children:
                bound = bound_addresses(child, deadline)
                facts: Any = {each.name: bound[each.name] or "" for each in fields(Endpoint)}
                self.endpoints.append(Endpoint(**facts))
        except BaseException:
            self.stop()
            raise

    def log_of(self, index: int) -> Path:
        """Return the file that has the standard error of a worker."""
        if self.directory is None:
            raise LaunchError("the workers have not been started; use LocalWorkers in a with statement")
        return self.directory / f"worker-{index}.log"

    def assign(self, tasks: Mapping[int, Sequence[int]], timeout: float = _READY_SECONDS) -> Assignment:
        """Give each worker (by index) its tasks, wait until all are ready, and return the assignment.

        A worker that is not named gets no tasks. Raises ConfigError when a task is there twice, and
        UnreachableError when a worker is not ready in time.
        """
        self._version += 1
        workers = (
            AssignedWorker(
                each.worker_id, each.address, tuple(tasks.get(index, ())), peer_address=each.peer_address
            )
            for index, each in enumerate(self.endpoints)
        )
        assignment = Assignment(self._version, self.topology, tuple(workers))
        deadline = time.monotonic() + timeout
        wire = assignment_to_wire(assignment)
        with contextlib.ExitStack() as clients:
            controls = [
                clients.enter_context(ControlClient(each.address, credentials=self._credentials))
                for each in self.endpoints
            ]
            for control in controls:
                control.update_assignment(wire)
            for index, control in enumerate(controls):
                try:
                    control.wait_ready(max(0.1, deadline - time.monotonic()))
                except UnreachableError as error:
                    raise UnreachableError(f"{error}\n{self._children[index].last_words()}") from error
        return assignment

    def stop(self) -> list[int]:
        """Drain and end all workers and return their exit codes (0: drained); does nothing the second time.

        A worker that has not ended some seconds after its drain's deadline is killed (exit code -9).
        """
        if self._children:
            for child in self._children:
                child.terminate()
            deadline = time.monotonic() + self._drain_seconds + _STOP_MARGIN_SECONDS
            with ThreadPoolExecutor(len(self._children)) as pool:
                self.exit_codes = list(pool.map(lambda child: child.end(deadline), self._children))
            self._children.clear()
        if self._temporary:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None
        return self.exit_codes
