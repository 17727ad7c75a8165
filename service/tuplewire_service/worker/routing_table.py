"""Which worker holds each task, by the assignment in force, and whether that means this worker at all."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

from tuplewire.errors import (
    NotLocalError,
    NotReadyError,
    RefusedError,
    StaleAssignmentError,
    TooManyHopsError,
    UnknownTaskError,
)
from tuplewire.settings.addresses import is_loopback, join_host_port, split_host_port
from tuplewire.values.group import MAX_UNQUEUED_HOPS
from tuplewire_service.worker.assignment import AssignedWorker, Assignment

LOCAL = "local"
"""The place of a task whose queue is here."""
WILDCARDS = frozenset({"0.0.0.0", "::"})  # noqa: S104 - only compared
"""The hosts that stand for all of them."""
_MOST_NAMED = 5

Place = tuple[str, int]
"""A host and a port."""


class RoutingTable:
    """A worker's view of its topology. Every error that it returns names the next step."""

    def __init__(self, worker_id: str) -> None:
        self.assignment: Assignment | None = None
        self.misnamed = ""
        """Why the assignment does not mean this worker; empty when it does."""
        self.workers: Sequence[AssignedWorker] = ()
        """All workers of the assignment, this one among them."""
        self.local: Sequence[int] = ()
        """The tasks that this worker holds."""
        self.others: Sequence[AssignedWorker] = ()
        """The other workers that hold tasks."""
        self.owner_of: Mapping[int, AssignedWorker] = {}
        """The worker that holds each task, this one among them; replaced with the assignment."""
        self._worker_id = worker_id

    def replace(self, assignment: Assignment) -> None:
        """Put an assignment in force."""
        self.assignment, self.workers = assignment, assignment.workers
        self.local = assignment.tasks_of(self._worker_id)
        self.others = [
            each for each in assignment.workers if each.worker_id != self._worker_id and each.tasks
        ]
        self.owner_of = assignment.owner_of

    def to_connect(
        self, named: Container[tuple[str, str]], *, everyone: bool
    ) -> dict[tuple[str, str], AssignedWorker]:
        """Return the other workers of the assignment that hold tasks, or are named, or (everyone) all."""
        return {
            each.peer: each
            for each in self.workers
            if each.worker_id != self._worker_id and (everyone or each.tasks or each.peer in named)
        }

    def elsewhere(self, task: int) -> AssignedWorker | None:
        """Return the other worker that holds a task; None if there is none."""
        owner = self.owner_of.get(task)
        return None if owner is None or owner.worker_id == self._worker_id else owner

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
                "configure an assignment file, or start it with --tasks where it is alone"
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


def places(bound: Iterable[str], advertise: str = "") -> list[Place]:
    """Return where a worker is reached: where it is bound over TCP, and what it was told to advertise.

    advertise: a host, with a port or with that of the first bound address; empty: nothing.
    """
    found = [split_host_port(address) for address in bound if "://" not in address]
    if advertise and found:
        found.append(split_host_port(with_port(advertise, found[0][1])))
    return found


def with_port(address: str, port: int) -> str:
    """Return host:port of an address that has a port of its own, or not."""
    return address if ":" in address and not address.endswith("]") else f"{address}:{port}"


def misnamed(assignment: Assignment, worker_id: str, own: Sequence[Place]) -> str:
    """Return why an assignment does not mean this worker, and what to do; empty when it does.

    An address that is not ours says nothing by itself: a proxy or another name for this host may be there.
    One that is ours, under another worker's id, says that peers take us for that worker.
    """
    ids = [worker.worker_id for worker in assignment.workers]
    mistaken = [
        (worker.worker_id, address)
        for worker in assignment.workers
        if worker.worker_id != worker_id
        for address in (worker.address, worker.peer[1])
        if any(_is(split_host_port(address), place) for place in own)
    ]
    if mistaken:
        other, address = mistaken[0]
        lacks = f"the assignment has no worker {worker_id}; its {address} is called {other}"
        if worker_id in ids:
            lacks = (
                f"the assignment has worker {worker_id} elsewhere; {address}, which is here, it calls {other}"
            )
        return f"{lacks}: start with --worker-id {other}, or correct the assignment"
    if worker_id in ids:
        return ""
    shown = ", ".join(ids[:_MOST_NAMED]) + (", ..." if len(ids) > _MOST_NAMED else "")
    here = ", ".join(join_host_port(*place) for place in own)
    return (
        f"the assignment has no worker {worker_id} (here, at {here}), only {shown or 'none'}: start with "
        "the --worker-id that it has for this worker, or add this one to it"
    )


def _is(address: Place, own: Place) -> bool:
    (host, port), (own_host, own_port) = address, own
    if port != own_port:
        return False
    if own_host in WILDCARDS:
        return is_loopback(host)
    localhost = "localhost" in {host.lower(), own_host.lower()}
    return host.lower() == own_host.lower() or (localhost and is_loopback(host) and is_loopback(own_host))
