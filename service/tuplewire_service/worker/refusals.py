"""The errors for a task that this worker does not hold; each names the next step."""

from __future__ import annotations

from tuplewire.errors import NotLocalError, NotReadyError, StaleAssignmentError, TooManyHopsError
from tuplewire.group import MAX_UNQUEUED_HOPS
from tuplewire_service.worker.assignment import AssignedWorker


def elsewhere(task: int, worker_id: str, owner: AssignedWorker) -> NotLocalError:
    """Return the error for a consumer whose task another worker holds."""
    where = f"on {owner.worker_id} at {owner.address}"
    return NotLocalError(f"task {task} is not on worker {worker_id} but {where}", owner.address)


def stale(task: int, owner: AssignedWorker, version: int, in_force: int) -> StaleAssignmentError:
    """Return the error for a program that routes by itself, and by an old assignment."""
    return StaleAssignmentError(
        f"task {task} has moved to worker {owner.worker_id} at {owner.address} since assignment version "
        f"{version}: send it there, by version {in_force}",
        owner.address,
    )


def circling(task: int, worker_id: str, owner: AssignedWorker | None) -> TooManyHopsError:
    """Return the error for messages that workers pass on to each other without end."""
    where = f"{owner.worker_id} at {owner.address}" if owner is not None else "nobody"
    return TooManyHopsError(
        f"messages to task {task} were passed on {MAX_UNQUEUED_HOPS} times, and no worker holds it; by the "
        f"assignment of {worker_id} it is on {where}: give all workers one assignment"
    )


def no_assignment(worker_id: str) -> NotReadyError:
    """Return the error for programs that connect before there is an assignment."""
    return NotReadyError(
        f"worker {worker_id} has no assignment yet: push one (tuplewire assign), "
        "or configure an assignment file"
    )
