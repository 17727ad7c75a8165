"""Which worker holds each task, by the assignment in force, and the errors for a task that is not here."""

from __future__ import annotations

from collections.abc import Mapping

from tuplewire.errors import (
    NotLocalError,
    NotReadyError,
    RefusedError,
    StaleAssignmentError,
    TooManyHopsError,
    UnknownTaskError,
)
from tuplewire.group import MAX_UNQUEUED_HOPS
from tuplewire_service.worker.assignment import AssignedWorker, Assignment

LOCAL = "local"
"""The place of a task whose queue is here."""


class RoutingTable:
    """A worker's view of its topology. Every error that it returns names the next step."""

    def __init__(self, worker_id: str) -> None:
        self.assignment: Assignment | None = None
        self.misnamed = ""
        """Why the assignment does not mean this worker; empty when it does."""
        self.local: frozenset[int] = frozenset()
        """The tasks that this worker holds."""
        self.owner_of: Mapping[int, AssignedWorker] = {}
        """The worker that holds each other task; replaced with the assignment."""
        self._worker_id = worker_id

    def replace(self, assignment: Assignment) -> None:
        """Put an assignment in force."""
        self.assignment = assignment
        self.local = frozenset(assignment.tasks_of(self._worker_id))
        others = (worker for worker in assignment.workers if worker.worker_id != self._worker_id)
        self.owner_of = {task: worker for worker in others for task in worker.tasks}

    @property
    def version(self) -> int:
        """The version in force; 0: there is none."""
        return self.assignment.version if self.assignment is not None else 0

    @property
    def not_ready(self) -> RefusedError | None:
        """Why it is not known which tasks there are: only an assignment that means this worker says it."""
        if self.assignment is None:
            return NotReadyError(
                f"worker {self._worker_id} has no assignment yet: push one (tuplewire assign), "
                "or configure an assignment file"
            )
        return NotReadyError(self.misnamed) if self.misnamed else None

    def not_here(self, task: int) -> RefusedError:
        """Return the error for whoever takes this worker for the one that holds a task."""
        if (error := self.not_ready) is not None:
            return error
        owner = self.owner_of.get(task)
        if owner is None:
            return UnknownTaskError(f"task {task} is not in assignment version {self.version}")
        where = f"on {owner.worker_id} at {owner.address}"
        return NotLocalError(f"task {task} is not on worker {self._worker_id} but {where}", owner.address)

    def stale(self, task: int, version: int) -> RefusedError:
        """Return the error for a program that routes a task by itself, and by an old assignment."""
        owner = self.owner_of[task]
        return StaleAssignmentError(
            f"task {task} has moved to worker {owner.worker_id} at {owner.address} since assignment version "
            f"{version}: send it there, by version {self.version}",
            owner.address,
        )

    def circling(self, task: int) -> RefusedError:
        """Return the error for messages that workers forward to each other without end."""
        owner = self.owner_of.get(task)
        where = f"{owner.worker_id} at {owner.address}" if owner is not None else "nobody"
        return TooManyHopsError(
            f"messages to task {task} were forwarded {MAX_UNQUEUED_HOPS} times, and no worker holds it; by "
            f"the assignment of {self._worker_id} it is on {where}: give all workers one assignment"
        )
