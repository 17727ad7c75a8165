"""Messages of the control service: names in requests, assignments, and the clients in a status."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import chain, islice
from typing import TypeVar
from urllib.parse import unquote

from tuplewire.errors import MalformedError
from tuplewire.wire import control_pb2 as pb
from tuplewire_service.worker.assignment import AssignedWorker, Assignment

MAX_CLIENTS = 1000
"""Maximum number of senders, and of consumers, in a status."""
MAX_NAMES = 100_000
"""Maximum number of tasks, workers or attempts in a request."""
_Name = TypeVar("_Name", bound=Hashable)


def unique(names: Sequence[_Name], noun: str) -> list[_Name]:
    """Return each name once, in order. Raises MalformedError if there are too many; `noun` describes them."""
    if len(names) > MAX_NAMES:
        raise MalformedError(f"{len(names)} {noun} in a request, and {MAX_NAMES} are allowed: split it")
    return list(dict.fromkeys(names))


def assignment_to_wire(assignment: Assignment) -> pb.Assignment:
    """Return an assignment in its wire form."""
    return pb.Assignment(
        version=assignment.version,
        topology=assignment.topology,
        workers=map(assigned_worker_to_wire, assignment.workers),
        inactive=not assignment.active,
    )


def assigned_worker_to_wire(worker: AssignedWorker) -> pb.AssignedWorker:
    """Return a worker of an assignment in its wire form."""
    return pb.AssignedWorker(
        worker_id=worker.worker_id,
        address=worker.address,
        tasks=worker.tasks,
        node=worker.node,
        peer_address=worker.peer_address,
    )


def assignment_from_wire(assignment: pb.Assignment) -> Assignment:
    """Read an assignment. Raises ConfigError or InvalidTaskError if it is inconsistent."""
    workers = (
        AssignedWorker(each.worker_id, each.address, tuple(each.tasks), each.node, each.peer_address)
        for each in assignment.workers
    )
    return Assignment(assignment.version, assignment.topology, tuple(workers), active=not assignment.inactive)


def add_clients(
    status: pb.GetStatusResponse,
    sessions: Sequence[pb.SessionStatus],
    consumers: Sequence[pb.ConsumerStatus],
    max_clients: int,
    may_list: Callable[[str], bool],
) -> None:
    """Add the connected clients to a status.

    At most `max_clients` of each kind are listed, but all are counted. `may_list` returns True if clients of
    an identity may be listed. A consumer lists only tasks that the status lists.
    """
    status.sessions.extend(islice((each for each in sessions if may_list(each.identity)), max_clients))
    status.consumers.extend(islice((each for each in consumers if may_list(each.identity)), max_clients))
    listed = {each.task for each in status.tasks}
    if len(listed) < status.local_task_count:
        for consumer in status.consumers:
            consumer.tasks[:] = sorted(listed.intersection(consumer.tasks))
    for client in chain[pb.SessionStatus | pb.ConsumerStatus](status.sessions, status.consumers):
        client.address = _format_address(client.address)
    status.connected_session_count = sum(each.connected for each in sessions)
    status.disconnected_session_count = len(sessions) - status.connected_session_count
    status.subscribed_consumer_count = len(consumers)


def _format_address(address: str) -> str:
    """Return an address in its usual form; gRPC has `ipv4:127.0.0.1:6700` and `ipv6:%5B::1%5D:6700`."""
    scheme, _, host_and_port = address.partition(":")
    return unquote(host_and_port) if scheme in {"ipv4", "ipv6"} else address
