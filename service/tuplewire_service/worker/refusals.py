"""What a worker says to those who come with a task that it does not hold; each error names the way out."""

from __future__ import annotations

from tuplewire.errors import NotLocalError, NotReadyError, StaleAssignmentError
from tuplewire_service.worker.assignment import AssignedWorker


def elsewhere(task: int, worker_id: str, owner: AssignedWorker) -> NotLocalError:
    """Return the error for a consumer whose task another worker holds."""
    where = f"on {owner.worker_id} at {owner.address}"
    return NotLocalError(f"task {task} is not on worker {worker_id} but {where}", owner.address)


def stale(task: int, owner: AssignedWorker, version: int, in_force: int) -> StaleAssignmentError:
    """Return the error for a program that sends to the owner of a task itself, and has the wrong one."""
    return StaleAssignmentError(
        f"task {task} has moved to worker {owner.worker_id} at {owner.address} since assignment version "
        f"{version}: send it there, by version {in_force}",
        owner.address,
    )


def no_assignment(worker_id: str) -> NotReadyError:
    """Return the error for programs that come before the assignment."""
    return NotReadyError(
        f"worker {worker_id} has no assignment yet: push one (tuplewire assign), "
        "or configure an assignment file"
    )
