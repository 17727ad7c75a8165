"""Snapshots of a worker: plain values for metrics, status calls and logs."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tuplewire.session.durations import Durations
from tuplewire.session.ledger import LedgerSnapshot
from tuplewire_service.messaging.base import ClientStatistics, ServerStatistics


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
    number: int
    """Counts the connections that were opened, from 1."""
    connected: bool
    statistics: ClientStatistics
    congested: frozenset[int]
    """The tasks whose queues it says are nearly full."""


class TaskSnapshot(NamedTuple):
    """One local task's receive queue; a tuple, since a worker may have 10,000 of them."""

    task: int
    queued_messages: int
    queued_bytes: int
    capacity_messages: int
    load: float
    """How full it is, in messages or bytes, from 0 to 1."""
    subscribed: bool
    acknowledged_sequence: int
    begin_sequence: int = 0
    """The sequence after which its messages here begin, since it came last."""
    oldest_seconds: float = 0.0
    """How long ago the oldest of its messages was accepted by its sender; 0: it has none."""

    @property
    def received_messages(self) -> int:
        """How many messages have come since the task came here last."""
        return self.acknowledged_sequence + self.queued_messages - self.begin_sequence

    @property
    def acknowledged_messages(self) -> int:
        """How many of these its consumer has acknowledged."""
        return self.acknowledged_sequence - self.begin_sequence


class ConsumerSnapshot(NamedTuple):
    """A consumer that is subscribed."""

    consumer_id: str
    who: str
    """Its identity, by certificate or token; empty where nobody is asked."""
    address: str
    """Where it comes from, as its transport says it; empty: it is in this process."""
    seconds: float
    """For how long it is subscribed."""
    tasks: Sequence[int]
    outstanding_messages: int
    """Messages that it has got, and not acknowledged."""
    """Whether it never acknowledges anything."""


@dataclass(frozen=True, slots=True)
class RecentSnapshot:
    """What the last seconds have brought."""

    seconds: float
    """How many seconds these are: the last five to ten."""
    accepted: int = 0
    acknowledged: int = 0
    dropped: int = 0
    """Messages that the worker took over, that were acknowledged to it, and that it has given up."""
    state_seconds: Mapping[str, float] = field(default_factory=dict)
    blocking_seconds: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """As in Timings, of those seconds alone."""


@dataclass(frozen=True, slots=True)
class Timings:
    """Where time goes. The durations count each message, but for the last."""

    state_seconds: Mapping[str, float]
    """Seconds in each TimeState; their sum is the worker's age."""
    blocking_seconds: Mapping[tuple[str, str], float]
    """How long a task has blocked others, by (task, where)."""
    recent: RecentSnapshot
    queue_wait: Durations
    """In a receive queue, until handed to a consumer for the first time."""
    send_to_ack: Durations
    """From the writing of a frame to another worker to its acknowledgement."""
    end_to_end: Durations
    """From acceptance by the sender to acknowledgement by a consumer here; by the clocks of both hosts."""
    loop_lag: Durations
    """How late the event loop was, probe by probe."""


@dataclass(frozen=True, slots=True)
class SinkSnapshot:
    """What Spark's sinks occupy."""

    memory_bytes: int
    """Staged, or waiting for room in queues, in memory."""
    disk_bytes: int
    """The same in temporary files."""
    waiting_messages: int
    """Chosen messages that wait for room in their queues."""
    waits: int
    """How often a piece has found no room."""


@dataclass(frozen=True, slots=True)
class TapSnapshot:
    """Who looks at messages as they pass."""

    open: int = 0
    """How many do so now."""
    shown: int = 0
    """Messages of which a copy was shown."""
    left_out: int = 0
    """Messages that were over the rate, or the bounds, of a tap."""


@dataclass(frozen=True, slots=True)
class RejectedSnapshot:
    """What became of rejected messages; those that were given up are in the ledger."""

    rejections: int
    """How many times consumers have rejected a message."""
    waiting: int
    """Copies that wait until they are due, or until somebody has their task."""
    dead_letter_task: int | None


@dataclass(frozen=True, slots=True)
class WorkerSnapshot:
    """A whole worker; its parts were read together."""

    worker_id: str
    incarnation: int
    topology: str
    state: WorkerState
    assignment_version: int
    newest_version: int
    """The newest assignment version that it knows of; greater: this worker lags behind."""
    ledger: LedgerSnapshot
    """The whole worker's: messages from programs and peers, and what became of them."""
    peers: Sequence[PeerSnapshot]
    perhaps_lost: Mapping[str, int]
    """By worker, messages that it had acknowledged and that may have died with it: at most so many."""
    predecessor_lost: int
    """Messages that died with the process before this one: at most so many."""
    tasks: Sequence[TaskSnapshot]
    """Its local tasks, or those of them that are worth a look."""
    local_tasks: int
    """How many it has."""
    servers: ServerStatistics
    """What programs and peers have sent, and what was refused to them, over all servers."""
    timings: Timings
    sinks: SinkSnapshot
    rejected: RejectedSnapshot
    redelivered_messages: int
    """Messages handed to a consumer, and perhaps to another one before."""
    addresses: Sequence[str]
    peer_addresses: Sequence[str]
    """Where other workers reach it, if not at its addresses."""
    congested: frozenset[int]
    """The local tasks whose queues are nearly full."""
    moving_tasks: int
    """Tasks that are changing hands and have something on an old route."""
    not_ready_because: str
    """Empty when ready; else one line for humans."""
    assignment_refused: bool = False
    """Whether what the assignment file has is not in force."""
    taps: TapSnapshot = TapSnapshot()
