"""The routing table: the owner of each task, by the current assignment.

Used by router.py, worker.py, timekeeper.py and transfer_queue.py. Owns the assignment, and the check that it
names this worker. Call only from the event loop. Design: docs/design/moves.md (hops and worker identity).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from tuplewire.errors import (
    NotReadyError,
    RefusedError,
    StaleAssignmentError,
    TaskNotLocalError,
    TooManyHopsError,
    UnknownTaskError,
)
from tuplewire.settings.addresses import Peer, is_loopback, join_host_port, split_host_port
from tuplewire.values.group import MAX_UNQUEUED_HOPS
from tuplewire_service.worker.assignment import AssignedWorker, Assignment

LOCAL = "local"
"""The place of a task with a queue on this worker, or without an owner."""
WILDCARD_HOSTS = frozenset({"0.0.0.0", "::"})  # noqa: S104 - only compared
"""The hosts that stand for all local addresses."""
_MAX_LISTED = 5

HostPort = tuple[str, int]


@dataclass(eq=False)
class RoutingTable:
    """A worker's view of its topology. Every error that it returns names the next step."""

    worker_id: str
    assignment: Assignment | None = None
    version: int = 0
    """The version of the current assignment; 0: none."""
    id_mismatch: str = ""
    """The reason that the assignment does not apply to this worker, or an empty string."""
    workers: Sequence[AssignedWorker] = ()
    """All workers of the assignment, including this one."""
    local_tasks: Sequence[int] = ()
    other_owners: Sequence[AssignedWorker] = ()
    owner_by_task: Mapping[int, AssignedWorker] = field(default_factory=dict)
    """The owner of each task, including this worker; replaced with the assignment."""
    get_outbound_tasks: Callable[[Collection[int]], AbstractSet[int]] | None = None
    """Returns the tasks that the program sends to; None: all. Source: Storm's `workerOutboundTasks`."""

    def replace(self, assignment: Assignment) -> None:
        """Apply an assignment."""
        self.assignment, self.workers = assignment, assignment.workers
        self.version = assignment.version
        self.local_tasks = assignment.tasks_of(self.worker_id)
        self.other_owners = [
            each for each in assignment.workers if each.worker_id != self.worker_id and each.tasks
        ]
        self.owner_by_task = assignment.owner_by_task

    def required_peers(self, extra_peers: Container[Peer], *, include_all: bool) -> list[Peer]:
        """Return the other workers that own outbound tasks or are in `extra_peers`; `include_all`: all."""
        outbound = None if self.get_outbound_tasks is None else self.get_outbound_tasks(self.local_tasks)
        return [
            each.peer
            for each in self.workers
            if each.worker_id != self.worker_id
            and (
                include_all
                or each.peer in extra_peers
                or (each.tasks if outbound is None else not outbound.isdisjoint(each.tasks))
            )
        ]

    @property
    def not_ready_error(self) -> RefusedError | None:
        """The reason that the tasks are unknown: no assignment, or one that does not name this worker."""
        if self.assignment is None:
            return NotReadyError(
                f"worker {self.worker_id} has no assignment yet: push one (tuplewire assign or membership), "
                "configure an assignment file, or start it with --tasks if it is the only worker"
            )
        return NotReadyError(self.id_mismatch) if self.id_mismatch else None

    def not_local_error(self, task: int) -> RefusedError:
        """Return the error for a caller that expects a task on this worker."""
        if (error := self.not_ready_error) is not None:
            return error
        owner = self.owner_by_task.get(task)
        if owner is None:
            known = f"which has {len(self.owner_by_task)} tasks; tuplewire offsets lists them"
            return UnknownTaskError(f"task {task} is not in assignment version {self.version}, {known}")
        where = f"on {owner.worker_id} at {owner.address}"
        detail = f"task {task} is not on worker {self.worker_id} but {where}"
        return TaskNotLocalError(detail, owner.address, owner.worker_id)

    def stale_error(self, task: int, version: int) -> RefusedError:
        """Return the error for a program that sends to a task by an old assignment."""
        owner = self.owner_by_task[task]
        return StaleAssignmentError(
            f"task {task} has moved to worker {owner.worker_id} at {owner.address} since assignment version "
            f"{version}: send it there, by version {self.version}",
            owner.address,
        )

    def cycle_error(self, task: int) -> RefusedError:
        """Return the error for messages that workers forward in a cycle."""
        owner = self.owner_by_task.get(task)
        where = f"{owner.worker_id} at {owner.address}" if owner is not None else "no worker"
        return TooManyHopsError(
            f"messages to task {task} were forwarded {MAX_UNQUEUED_HOPS} times, and no worker holds it; by "
            f"the assignment of {self.worker_id} it is on {where}: give all workers one assignment"
        )


def own_endpoints(bound: Iterable[str], advertise: str = "") -> list[HostPort]:
    """Return a worker's addresses: its TCP addresses and the advertised one.

    `advertise` is a host with or without a port; the default is the port of the first bound address.
    """
    # Unix sockets have no host and port.
    found = [split_host_port(address) for address in bound if "://" not in address]
    if advertise and found:
        found.append(split_host_port(with_port(advertise, found[0][1])))
    return found


def with_port(address: str, port: int) -> str:
    """Return an address as host:port; `port` is the default."""
    return address if ":" in address and not address.endswith("]") else f"{address}:{port}"


def find_id_mismatch(assignment: Assignment, worker_id: str, endpoints: Sequence[HostPort]) -> str:
    """Return the reason that an assignment does not apply to this worker, with the fix; empty if it applies.

    A foreign address alone proves nothing: it may be a proxy or another name of this host. An own address
    under another worker's id proves that peers mistake this worker for the other.
    """
    ids = [worker.worker_id for worker in assignment.workers]
    conflicting = [
        (worker.worker_id, address)
        for worker in assignment.workers
        if worker.worker_id != worker_id
        for address in (worker.address, worker.peer.address)
        if any(_same_endpoint(split_host_port(address), each) for each in endpoints)
    ]
    if conflicting:
        other, address = conflicting[0]
        problem = f"the assignment has no worker {worker_id}; it gives {address}, which is here, to {other}"
        if worker_id in ids:
            problem = f"the assignment has {worker_id} elsewhere, and gives {address}, here, to {other}"
        return f"{problem}: start with --worker-id {other}, or correct the assignment"
    if worker_id in ids:
        return ""
    listed = ", ".join(ids[:_MAX_LISTED]) + (", ..." if len(ids) > _MAX_LISTED else "")
    own = ", ".join(join_host_port(*each) for each in endpoints)
    return (
        f"the assignment has no worker {worker_id} (here, at {own}), only {listed or 'none'}: start with "
        "the --worker-id that it has for this worker, or add this one to it"
    )


def _same_endpoint(address: HostPort, own: HostPort) -> bool:
    (host, port), (own_host, own_port) = address, own
    if port != own_port:
        return False
    # Only a loopback address is certain to be on this machine.
    if own_host in WILDCARD_HOSTS:
        return is_loopback(host)
    localhost = "localhost" in {host.lower(), own_host.lower()}
    return host.lower() == own_host.lower() or (localhost and is_loopback(host) and is_loopback(own_host))
