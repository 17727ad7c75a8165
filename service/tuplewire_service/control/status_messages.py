"""The worker's values as the control service's messages, and back."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from functools import cache
from itertools import islice
from typing import Any, TypeVar
from urllib.parse import unquote

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

import tuplewire
from tuplewire.session.durations import BOUNDS, Durations
from tuplewire.wire import control_pb2 as pb
from tuplewire_service.messaging.base import SessionSnapshot
from tuplewire_service.worker.assignment import AssignedWorker, Assignment
from tuplewire_service.worker.entries import Entries, HeldOfTask
from tuplewire_service.worker.worker_snapshot import ConsumerSnapshot, WorkerSnapshot

MOST_CLIENTS = 1000
"""How many senders, and how many consumers, a status lists at most."""
_MOST_BLOCKING = 10
_TOLD_LATER: dict[str, Any] = dict.fromkeys(
    (
        "sessions",
        "consumers",
        "connected_sessions",
        "remembered_sessions",
        "subscribed_consumers",
        "resident_bytes",
        "components",
    )
)
"""Fields of a status that are not in a snapshot."""

_Message = TypeVar("_Message", bound=Message)


def _filled(kind: type[_Message], value: object, **further: Any) -> _Message:
    """Return a message whose fields are a value's attributes by the same names, but for further ones."""
    return kind(
        **{name: getattr(value, name) for name in _names(kind.DESCRIPTOR) if name not in further}, **further
    )


@cache
def _names(descriptor: Descriptor) -> tuple[str, ...]:
    return tuple(descriptor.fields_by_name)


def assignment_to_wire(assignment: Assignment) -> pb.Assignment:
    """Return the assignment as it travels."""
    workers = map(assigned_worker_to_wire, assignment.workers)
    return _filled(pb.Assignment, assignment, workers=workers)


def assigned_worker_to_wire(worker: AssignedWorker) -> pb.AssignedWorker:
    """Return a worker of an assignment as it travels."""
    return _filled(pb.AssignedWorker, worker)


def assignment_from_wire(assignment: pb.Assignment) -> Assignment:
    """Read an assignment; ConfigError or InvalidTaskError when it does not hold together."""
    workers = (
        AssignedWorker(each.worker_id, each.address, tuple(each.tasks), each.node, each.peer_address)
        for each in assignment.workers
    )
    return Assignment(assignment.version, assignment.topology, tuple(workers))


def held_to_wire(held: HeldOfTask, entries: Entries | None, *, congested: bool) -> pb.HeldTask:
    """Return what is held of a task as it travels. entries: how it is numbered, where that is wanted."""
    numbered = None if entries is None else _filled(pb.TaskEntries, entries)
    return _filled(pb.HeldTask, held, congested=congested, entries=numbered)


def status_to_wire(snapshot: WorkerSnapshot) -> pb.GetStatusResponse:
    """Return the snapshot as it travels."""
    timings = snapshot.timings
    recently = timings.recent.blocking_seconds
    blocking = heapq.nlargest(
        _MOST_BLOCKING,
        ((recently.get(pair, 0.0), took, *pair) for pair, took in timings.blocking_seconds.items()),
    )
    return _filled(
        pb.GetStatusResponse,
        snapshot,
        version=tuplewire.__version__,
        state=pb.WorkerState.Value(f"WORKER_STATE_{snapshot.state.name}"),
        newest_assignment_version=snapshot.newest_version,
        ledger=_filled(pb.Ledger, snapshot.ledger),
        peers=[
            _filled(
                pb.PeerStatus,
                peer,
                ledger=_filled(pb.Ledger, peer.statistics.ledger),
                reconnects=peer.statistics.reconnects,
                congested=sorted(peer.congested),
            )
            for peer in snapshot.peers
        ],
        tasks=[  # there may be 10,000
            pb.TaskStatus(
                task=task.task,
                queued_messages=task.queued_messages,
                queued_bytes=task.queued_bytes,
                subscribed=task.subscribed,
                acknowledged_sequence=task.acknowledged_sequence,
                begin_sequence=task.begin_sequence,
                congested=task.task in snapshot.congested,
                oldest_seconds=task.oldest_seconds,
                load=task.load,
            )
            for task in snapshot.tasks
        ],
        received=[_filled(pb.ReceiveCount, count) for count in snapshot.servers.received],
        state_seconds=timings.state_seconds,
        blocking=[
            pb.Blocking(task=task, where=where, seconds=took, recent_seconds=lately)
            for lately, took, task, where in blocking
        ],
        recent=_filled(pb.Recent, timings.recent),
        queue_wait=_latency(timings.queue_wait),
        end_to_end=_latency(timings.end_to_end),
        smallest_window=snapshot.servers.smallest_window,
        refused_streams=snapshot.servers.refused_streams,
        refused_messages=snapshot.servers.refused_messages,
        rejections=snapshot.rejected.rejections,
        rejected_waiting=snapshot.rejected.waiting,
        dead_letter_task=snapshot.rejected.dead_letter_task,
        **_TOLD_LATER,
    )


def _latency(durations: Durations) -> pb.Latency:
    return pb.Latency(bounds=BOUNDS, messages=durations.counts, seconds=durations.seconds)


def add_clients(
    status: pb.GetStatusResponse,
    sessions: Sequence[SessionSnapshot],
    consumers: Sequence[ConsumerSnapshot],
    most: int,
    sees: Callable[[str], bool],
) -> None:
    """Add who is connected to a status.

    most: as many of each are listed at most, and all of them counted. sees: whether those of an identity may
    be listed. Of a consumer's tasks those are listed that the status lists.
    """
    most = min(most, MOST_CLIENTS)
    listed = {each.task for each in status.tasks}
    seen = islice((each for each in sessions if sees(each.who)), most)
    status.sessions.extend(
        _filled(pb.SessionStatus, each, address=_shown_address(each.address)) for each in seen
    )
    subscribed = islice((each for each in consumers if sees(each.who)), most)
    status.consumers.extend(
        _filled(
            pb.ConsumerStatus,
            each,
            address=_shown_address(each.address),
            tasks=each.tasks
            if len(listed) == status.local_tasks
            else sorted(listed.intersection(each.tasks)),
            held_tasks=len(each.tasks),
        )
        for each in subscribed
    )
    status.connected_sessions = sum(each.connected for each in sessions)
    status.remembered_sessions = len(sessions) - status.connected_sessions
    status.subscribed_consumers = len(consumers)


def _shown_address(address: str) -> str:
    """Return an address as people write it; gRPC has `ipv4:127.0.0.1:6700` and `ipv6:%5B::1%5D:6700`."""
    scheme, _, rest = address.partition(":")
    return unquote(rest) if scheme in {"ipv4", "ipv6"} else address
