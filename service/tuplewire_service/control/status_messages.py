"""The worker's values as the control service's messages, and back."""

from __future__ import annotations

import heapq
from operator import itemgetter

import tuplewire
from tuplewire.session.ledger import LedgerSnapshot
from tuplewire.wire import control_pb2
from tuplewire_service.worker.assignment import AssignedWorker, Assignment
from tuplewire_service.worker.status import WorkerSnapshot, WorkerState

_MOST_BLOCKING = 10
_STATES = {
    WorkerState.STARTING: control_pb2.WORKER_STATE_STARTING,
    WorkerState.READY: control_pb2.WORKER_STATE_READY,
    WorkerState.DRAINING: control_pb2.WORKER_STATE_DRAINING,
    WorkerState.STOPPED: control_pb2.WORKER_STATE_STOPPED,
}


def assignment_to_wire(assignment: Assignment) -> control_pb2.Assignment:
    """Return the assignment as it travels."""
    return control_pb2.Assignment(
        version=assignment.version,
        topology=assignment.topology,
        workers=[
            control_pb2.AssignedWorker(
                worker_id=worker.worker_id,
                address=worker.address,
                tasks=worker.tasks,
                node=worker.node,
                peer_address=worker.peer_address,
            )
            for worker in assignment.workers
        ],
    )


def assignment_from_wire(assignment: control_pb2.Assignment) -> Assignment:
    """Read an assignment; ConfigError or InvalidTaskError when it does not hold together."""
    return Assignment(
        version=assignment.version,
        topology=assignment.topology,
        workers=tuple(
            AssignedWorker(
                worker.worker_id, worker.address, tuple(worker.tasks), worker.node, worker.peer_address
            )
            for worker in assignment.workers
        ),
    )


def ledger_to_wire(ledger: LedgerSnapshot) -> control_pb2.Ledger:
    """Return the balance as it travels."""
    return control_pb2.Ledger(
        accepted=ledger.accepted,
        acknowledged=ledger.acknowledged,
        dropped=ledger.dropped,
        pending=ledger.pending,
    )


def status_to_wire(snapshot: WorkerSnapshot) -> control_pb2.GetStatusResponse:
    """Return the snapshot as it travels."""
    return control_pb2.GetStatusResponse(
        worker_id=snapshot.worker_id,
        incarnation=snapshot.incarnation,
        topology=snapshot.topology,
        version=tuplewire.__version__,
        state=_STATES[snapshot.state],
        assignment_version=snapshot.assignment_version,
        newest_assignment_version=snapshot.newest_version,
        ledger=ledger_to_wire(snapshot.ledger),
        peers=[
            control_pb2.PeerStatus(
                address=peer.address,
                connected=peer.connected,
                ledger=ledger_to_wire(peer.statistics.ledger),
                reconnects=peer.statistics.reconnects,
                congested=sorted(peer.congested),
            )
            for peer in snapshot.peers
        ],
        tasks=[
            control_pb2.TaskStatus(
                task=task.task,
                queued_messages=task.queued_messages,
                queued_bytes=task.queued_bytes,
                subscribed=task.subscribed,
                acknowledged_sequence=task.acknowledged_sequence,
                congested=task.task in snapshot.congested,
            )
            for task in snapshot.tasks
        ],
        received=[
            control_pb2.ReceiveCount(
                source=count.source, messages=count.messages, batches=count.batches, bytes=count.bytes
            )
            for count in snapshot.received
        ],
        addresses=snapshot.addresses,
        peer_addresses=snapshot.peer_addresses,
        moving_tasks=snapshot.moving_tasks,
        not_ready_because=snapshot.not_ready_because,
        state_seconds=snapshot.timings.state_seconds,
        blocking=[
            control_pb2.Blocking(task=task, where=where, seconds=seconds)
            for (task, where), seconds in heapq.nlargest(
                _MOST_BLOCKING, snapshot.timings.blocking_seconds.items(), key=itemgetter(1)
            )
        ],
    )
