"""What the workers of a topology hold of some tasks, and who they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from types import TracebackType
from typing import Self, TypeVar

from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import NotReadyError, UnknownTaskError, UnreachableError, WrongTopologyError
from tuplewire.spark.offsets import Held

_POLL_SECONDS = 0.05
_MAX_CALL_SECONDS = 5.0

_Answer = TypeVar("_Answer")


class HeldTasks:
    """Asks the workers that have some tasks what they hold; keeps a channel to each of them.

    address: of any worker of the topology, which tells the others'. timeout: seconds for which a worker that
    does not answer, or that has no assignment yet, is asked again.
    """

    def __init__(self, address: str, topology: str, tasks: Iterable[int], timeout: float) -> None:
        self._address = address
        self._topology = topology
        self._tasks = tuple(tasks)
        self._timeout = timeout
        self._stack = ExitStack()
        self._controls: dict[str, ControlClient] = {}
        self._tasks_at: dict[str, list[int]] = {}
        self._version = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the channels; does nothing the second time."""
        self._stack.close()
        self._controls.clear()

    def look(self) -> dict[int, Held]:
        """Return what is held of each task now.

        Raises UnreachableError, NotReadyError, WrongTopologyError, or UnknownTaskError for a task that the
        assignment does not have.
        """
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                return self._look()
            except (UnreachableError, NotReadyError):
                self._tasks_at = {}
                if time.monotonic() > deadline:
                    raise
                time.sleep(_POLL_SECONDS)

    def _look(self) -> dict[int, Held]:
        if not self._tasks_at:
            self._locate()
        found: dict[int, Held] = {}
        for address, tasks in self._tasks_at.items():
            status = self._call(address, ControlClient.status)
            here = {each.task: each for each in status.tasks}
            if status.assignment_version > self._version or not here.keys() >= set(tasks):
                self._tasks_at = {}
                raise NotReadyError(f"the worker at {address} lacks some of the tasks {tasks}: they move")
            for task in tasks:
                each = here[task]
                found[task] = Held(
                    address,
                    status.incarnation,
                    each.acknowledged_sequence,
                    each.acknowledged_sequence + each.queued_messages,
                    each.queued_bytes,
                )
        return {task: found[task] for task in self._tasks}

    def _locate(self) -> None:
        """Ask for the assignment, and take the addresses by which the workers reach each other."""
        assignment = self._call(self._address, ControlClient.assignment)
        if assignment is None:
            raise NotReadyError(
                f"the worker at {self._address} has no assignment yet: push one (tuplewire assign), or "
                "configure an assignment file"
            )
        if assignment.topology != self._topology:
            raise WrongTopologyError(
                f"the worker at {self._address} serves topology {assignment.topology!r}, not "
                f"{self._topology!r}: set the option topology"
            )
        address_of = {task: worker.address for worker in assignment.workers for task in worker.tasks}
        unknown = [task for task in self._tasks if task not in address_of]
        if unknown:
            raise UnknownTaskError(
                f"assignment version {assignment.version} has no task {', '.join(map(str, unknown[:10]))}; "
                f"it has {', '.join(map(str, sorted(address_of)[:20])) or 'none'}: set the option tasks"
            )
        self._version = assignment.version
        for task in self._tasks:
            self._tasks_at.setdefault(address_of[task], []).append(task)

    def _call(self, address: str, method: Callable[[ControlClient], _Answer]) -> _Answer:
        control = self._controls.get(address)
        if control is None:
            control = ControlClient(address, min(self._timeout, _MAX_CALL_SECONDS))
            self._controls[address] = self._stack.enter_context(control)
        return method(control)
