"""Snapshots of a worker: plain values for metrics, status calls and logs."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from tuplewire.session.ledger import LedgerSnapshot
from tuplewire_service.messaging.base import ClientStatistics, ReceiveCount


class WorkerState(enum.StrEnum):
    """Where a worker is in its life."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class PeerSnapshot:
    """One outbound connection."""

    worker_id: str
    address: str
    connected: bool
    statistics: ClientStatistics


@dataclass(frozen=True, slots=True)
class TaskSnapshot:
    """One local task's receive queue."""

    task: int
    queued_messages: int
    queued_bytes: int
    capacity_messages: int
    subscribed: bool
    acknowledged_sequence: int


@dataclass(frozen=True, slots=True)
class WorkerSnapshot:
    """A whole worker; its parts were read together."""

    worker_id: str
    incarnation: int
    topology: str
    state: WorkerState
    assignment_version: int
    ledger: LedgerSnapshot
    """Over the whole worker: what clients and peers handed to it, and what became of that."""
    peers: Sequence[PeerSnapshot]
    tasks: Sequence[TaskSnapshot]
    received: Sequence[ReceiveCount]
    refused: dict[str, int]
    """Refused streams and messages by the error's code."""
    addresses: Sequence[str]
    peer_addresses: Sequence[str]
    """Where other workers reach it, if not there."""
    moving_tasks: int
    """Tasks that are changing hands and have something on an old way."""
    not_ready_because: str
    """Empty when ready; else one line for humans."""
