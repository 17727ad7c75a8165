"""The current state of a cluster as rows, made from two statuses of each worker. Pure: no clock, no I/O.

A rate is the growth of a count between the statuses, per second of the worker's clock; None after one status.
The workers report the tasks that block others, for their last seconds. Used by the commands and live_page.py.
Owns no state. Thread-safe. Design: docs/design/status.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from tuplewire.values.task_ids import format_tasks
from tuplewire.wire import control_pb2 as pb
from tuplewire_service.command.viewer.columns import (
    Column,
    Row,
    format_bytes,
    format_client,
    format_number,
    format_share,
    format_time,
    format_yes_no,
    select_rows,
)
from tuplewire_service.command.viewer.rates import Blocker, Interval, WorkerSample, blocking_tasks, state_name
from tuplewire_service.command.viewer.topology_rows import (
    BLOCKED_SHARE,
    BUSY_SHARE,
    ComponentRow,
    EdgeRow,
    ExecutorRow,
    component_of,
    component_rows,
    edge_rows,
    executor_rows,
    slow_component_problems,
)

TABLES = ("workers", "tasks", "peers", "senders", "consumers", "losses", "executors")
"""The fields of ClusterRows that are shown as tables."""
_BACKPRESSURED = "backpressured_"
_P99 = 0.99  # the quantile of latencies
NO_ANSWER = "no answer"
"""The state of a worker that did not answer the last request."""
_FULL_LEVEL = 0.8  # the fill level at which a queue has a sentence, as in the alert TuplewireQueueFilling
_MAX_FULL_QUEUES = 5
_Blockers = Mapping[tuple[str, str], Blocker]  # by the worker that owns the task, and the task


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRow(Row):
    """A worker. `busy`, `idle` and `backpressured` are shares of its time, 0 to 1; `states` has all shares.

    `backpressure_cause` is the main cause of `backpressured`. The times named `p99` are 99th
    percentiles; None: there were no messages. Of a worker that does not answer, unknown values are None.
    """

    ORDER = ("worker", "address")
    worker: Annotated[str, Column("worker")]
    state: Annotated[str, Column("state")]
    accepted_rate: Annotated[float | None, Column("in/s", format_number)] = None
    acknowledged_rate: Annotated[float | None, Column("out/s", format_number)] = None
    pending: Annotated[int | None, Column("pending", format_number)] = None
    busy: Annotated[float | None, Column("busy", format_share)] = None
    idle: float | None = None
    backpressured: Annotated[float | None, Column("blocked", format_share)] = None
    backpressure_cause: Annotated[str, Column("by")] = ""
    connected_senders: Annotated[int | None, Column("senders", format_number)] = None
    disconnected_senders: Annotated[int | None, Column("resumable", format_number)] = None
    consumers: Annotated[int | None, Column("consumers", format_number)] = None
    smallest_window_messages: Annotated[int | None, Column("window", format_number)] = None
    memory_bytes: Annotated[int | None, Column("memory", format_bytes)] = None
    version: Annotated[str, Column("version")] = ""
    assignment_version: Annotated[int | None, Column("assignment")] = None
    address: Annotated[str, Column("address")]
    problem: Annotated[str, Column("problem")]
    silent_seconds: float = 0.0
    task_count: int = 0
    dropped: int | None = None
    end_to_end_p99_seconds: float | None = None
    queue_wait_p99_seconds: float | None = None
    states: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TaskRow(Row):
    """A task. `load` is the fill level of its queue, 0 to 1.

    `blocking` is the share of the last seconds for which it blocked senders, at the `blocked_workers`.
    """

    ORDER = ("blocking", "load", "received_rate")
    task: Annotated[int, Column("task")]
    worker: Annotated[str, Column("worker")]
    received_rate: Annotated[float | None, Column("in/s", format_number)]
    acknowledged_rate: Annotated[float | None, Column("out/s", format_number, minor=True)]
    queued_messages: Annotated[int, Column("waiting", format_number)]
    queued_bytes: int
    load: Annotated[float, Column("full", format_share)]
    oldest_seconds: Annotated[float, Column("oldest", format_time)]
    blocking: Annotated[float, Column("blocks", format_share)]
    blocked_workers: Annotated[Sequence[str], Column("blocked workers", ", ".join, minor=True)]
    received_messages: Annotated[int, Column("received", format_number, minor=True)]
    acknowledged_messages: Annotated[int, Column("acknowledged", format_number, minor=True)]
    congested: Annotated[bool, Column("congested", lambda value: "yes" if value else "", minor=True)]
    subscribed: Annotated[bool, Column("consumed", format_yes_no, minor=True)]
    consumer: Annotated[str, Column("consumer", format_client)]
    component: Annotated[str, Column("component")]

    @property
    def unused(self) -> bool:
        """True if the task has had no messages, and has no consumer or component."""
        return not (self.received_messages or self.queued_messages or self.subscribed or self.component)


@dataclass(frozen=True, slots=True)
class PeerRow(Row):
    """A connection to another worker. `blocking` is the highest of the tasks there; see TaskRow."""

    ORDER = ("pending", "accepted_rate")
    worker: Annotated[str, Column("worker")]
    peer: Annotated[str, Column("to")]
    connected: Annotated[bool, Column("connected", format_yes_no)]
    accepted_rate: Annotated[float | None, Column("in/s", format_number)]
    acknowledged_rate: Annotated[float | None, Column("acknowledged/s", format_number)]
    pending: Annotated[int, Column("pending", format_number)]
    dropped: Annotated[int, Column("dropped", format_number)]
    accepted: Annotated[int, Column("accepted", format_number, minor=True)]
    acknowledged: Annotated[int, Column("acknowledged", format_number, minor=True)]
    reconnects: Annotated[int, Column("reconnects", format_number, minor=True)]
    congested_tasks: Annotated[int, Column("congested tasks", format_number)]
    blocking: Annotated[float, Column("blocks", format_share)]
    address: Annotated[str, Column("address")]


@dataclass(frozen=True, slots=True)
class SenderRow(Row):
    """A sender's session at a worker. `sender` is the ID of the sender, or of the worker that sends."""

    ORDER = ("rate", "outstanding_messages")
    worker: Annotated[str, Column("worker")]
    sender: Annotated[str, Column("sender", format_client)]
    identity: Annotated[str, Column("identity")]
    connected: Annotated[bool, Column("connected", format_yes_no)]
    state_age_seconds: Annotated[float, Column("since", format_time)]
    rate: Annotated[float | None, Column("messages/s", format_number)]
    bytes_rate: Annotated[float | None, Column("bytes/s", format_bytes, minor=True)]
    sent_messages: Annotated[int, Column("messages", format_number, minor=True)]
    sent_bytes: Annotated[int, Column("bytes", format_bytes, minor=True)]
    outstanding_messages: Annotated[int, Column("outstanding", format_number)]
    window_messages: Annotated[int, Column("window", format_number)]
    blocking_task_count: Annotated[int, Column("blocking tasks", format_number)]
    address: Annotated[str, Column("address")]


@dataclass(frozen=True, slots=True)
class ConsumerRow(Row):
    """A subscription at a worker. `tasks` are the reported ones of its `task_count` tasks."""

    ORDER = ("outstanding_messages", "subscribed_seconds")
    worker: Annotated[str, Column("worker")]
    consumer: Annotated[str, Column("consumer", format_client)]
    identity: Annotated[str, Column("identity")]
    subscribed_seconds: Annotated[float, Column("since", format_time)]
    outstanding_messages: Annotated[int, Column("outstanding", format_number)]
    tasks: Annotated[Sequence[int], Column("tasks", format_tasks)]
    task_count: int
    address: Annotated[str, Column("address")]


@dataclass(frozen=True, slots=True)
class LossRow(Row):
    """A count of dropped messages, refused messages or refused streams of a worker. `rate` is per second."""

    ORDER = ("count", "reason")
    worker: Annotated[str, Column("worker")]
    kind: Annotated[str, Column("kind")]
    reason: Annotated[str, Column("reason")]
    rate: Annotated[float | None, Column("per second", format_number)]
    count: Annotated[int, Column("total", format_number)]


@dataclass(frozen=True, slots=True)
class ClusterRows:
    """All rows. `problems` has sentences about the problems below, in this order, the worst first.

    The kinds are workers that do not answer, slow components, blocking tasks, and full queues.
    """

    components: list[ComponentRow] = field(default_factory=list)
    edges: list[EdgeRow] = field(default_factory=list)
    workers: list[WorkerRow] = field(default_factory=list)
    tasks: list[TaskRow] = field(default_factory=list)
    peers: list[PeerRow] = field(default_factory=list)
    senders: list[SenderRow] = field(default_factory=list)
    consumers: list[ConsumerRow] = field(default_factory=list)
    losses: list[LossRow] = field(default_factory=list)
    executors: list[ExecutorRow] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def cluster_rows(samples: Iterable[WorkerSample]) -> ClusterRows:
    """Return the rows of a cluster."""
    samples = list(samples)
    answered = [(each.status, Interval(each.previous, each.status)) for each in samples if each.status]
    blockers = blocking_tasks(now for now, _ in answered)
    rows = ClusterRows(edges=edge_rows(answered), workers=[_worker(each) for each in samples])
    for now, interval in answered:
        rows.executors.extend(executor_rows(now, interval))
    shares = {int(task): blocker.share for (_, task), blocker in blockers.items() if task.isdecimal()}
    rows.components.extend(component_rows(answered, rows.executors, shares))
    for now, interval in answered:
        rows.tasks.extend(_tasks(now, interval, blockers, rows.components))
        rows.peers.extend(_peers(now, interval, blockers))
        rows.senders.extend(_senders(now, interval))
        rows.consumers.extend(_consumers(now))
        rows.losses.extend(_losses(now, interval))
    rows.problems.extend(_unreachable_problems(samples, blockers))
    rows.problems.extend(slow_component_problems(rows.components, rows.edges, rows.executors))
    rows.problems.extend(_task_problems(blockers, rows))
    return rows


def _worker(sample: WorkerSample) -> WorkerRow:
    now = sample.status
    if now is None:
        return WorkerRow(
            worker=sample.worker,
            state=NO_ANSWER,
            address=sample.address,
            problem=sample.problem,
            task_count=sample.task_count,
            silent_seconds=sample.silent_seconds,
        )
    interval = Interval(sample.previous, now)
    shares = interval.shares(now)
    held = {each: share for each, share in shares.items() if each.startswith(_BACKPRESSURED) and share > 0}
    before = interval.previous.ledger
    window = now.smallest_window_messages if now.HasField("smallest_window_messages") else None
    return WorkerRow(
        worker=now.worker_id,
        address=sample.address,
        state=state_name(now.state, inactive=now.spouts_inactive),
        problem=sample.problem or now.not_ready_reason,
        version=now.version,
        assignment_version=now.assignment_version,
        memory_bytes=now.resident_bytes,
        busy=shares.get("busy", 0.0),
        idle=shares.get("idle", 0.0),
        backpressured=sum(held.values()),
        backpressure_cause=max(held, key=held.__getitem__).removeprefix(_BACKPRESSURED) if held else "",
        accepted_rate=interval.rate(now.ledger.accepted, before.accepted),
        acknowledged_rate=interval.rate(now.ledger.acknowledged, before.acknowledged),
        pending=now.ledger.pending,
        task_count=now.local_task_count,
        connected_senders=now.connected_session_count,
        disconnected_senders=now.disconnected_session_count,
        consumers=now.subscribed_consumer_count,
        smallest_window_messages=window,
        dropped=sum(now.ledger.dropped.values()),
        end_to_end_p99_seconds=interval.quantile(_P99, now.end_to_end, interval.previous.end_to_end),
        queue_wait_p99_seconds=interval.quantile(_P99, now.queue_wait, interval.previous.queue_wait),
        states=shares,
    )


def _tasks(
    now: pb.GetStatusResponse, interval: Interval, blockers: _Blockers, components: Sequence[ComponentRow]
) -> Iterator[TaskRow]:
    consumers = {task: each.consumer_id for each in now.consumers for task in each.tasks}
    for each in now.tasks:
        received_rate, acknowledged_rate = interval.task_rates(each)
        blocker = blockers.get((now.worker_id, str(each.task)))
        yield TaskRow.from_message(
            each,
            worker=now.worker_id,
            received_rate=received_rate,
            acknowledged_rate=acknowledged_rate,
            consumer=consumers.get(each.task, ""),
            blocking=blocker.share if blocker else 0.0,
            blocked_workers=blocker.blocked_workers if blocker else [],
            component=component_of(each.task, components),
        )


def _peers(now: pb.GetStatusResponse, interval: Interval, blockers: _Blockers) -> Iterator[PeerRow]:
    blocking: dict[str, float] = {}
    for (at, _), blocker in blockers.items():
        if now.worker_id in blocker.blocked_workers:
            blocking[at] = max(blocking.get(at, 0.0), blocker.share)
    before = {(each.worker_id, each.address): each.ledger for each in interval.previous.peers}
    for each in now.peers:
        then = before.get((each.worker_id, each.address), pb.Ledger())
        yield PeerRow.from_message(
            each,
            worker=now.worker_id,
            peer=each.worker_id,
            accepted_rate=interval.rate(each.ledger.accepted, then.accepted),
            acknowledged_rate=interval.rate(each.ledger.acknowledged, then.acknowledged),
            pending=each.ledger.pending,
            dropped=sum(each.ledger.dropped.values()),
            accepted=each.ledger.accepted,
            acknowledged=each.ledger.acknowledged,
            congested_tasks=len(each.congested_tasks),
            blocking=blocking.get(each.worker_id, 0.0),
        )


def _senders(now: pb.GetStatusResponse, interval: Interval) -> Iterator[SenderRow]:
    before = {(each.identity, each.sender_id): each for each in interval.previous.sessions}
    for each in now.sessions:
        at = each.identity, each.sender_id
        then = before.get(at, pb.SessionStatus())
        # A worker lists only some of many sessions, so a newly listed session may be an old one.
        known = at in before or each.state_age_seconds < interval.seconds
        yield SenderRow.from_message(
            each,
            worker=now.worker_id,
            sender=each.worker_id or each.sender_id,
            rate=interval.rate(each.sent_messages, then.sent_messages) if known else None,
            bytes_rate=interval.rate(each.sent_bytes, then.sent_bytes) if known else None,
        )


def _consumers(now: pb.GetStatusResponse) -> Iterator[ConsumerRow]:
    for each in now.consumers:
        tasks = list(each.tasks)
        yield ConsumerRow.from_message(each, worker=now.worker_id, consumer=each.consumer_id, tasks=tasks)


def _losses(now: pb.GetStatusResponse, interval: Interval) -> Iterator[LossRow]:
    before = interval.previous
    for kind, counts, then in (
        ("messages dropped", now.ledger.dropped, before.ledger.dropped),
        ("messages refused", now.refused_messages, before.refused_messages),
        ("streams refused", now.refused_streams, before.refused_streams),
    ):
        for reason, count in counts.items():
            if count and (kind, reason) != ("streams refused", "TASK_NOT_LOCAL"):  # a normal redirection
                yield LossRow(now.worker_id, kind, reason, interval.rate(count, then.get(reason, 0)), count)


def _unreachable_problems(samples: Iterable[WorkerSample], blockers: _Blockers) -> Iterator[str]:
    for each in samples:
        if each.status is None:
            waiting = {
                name for (at, _), one in blockers.items() if at == each.worker for name in one.blocked_workers
            }
            whom = f", and blocks senders at {', '.join(sorted(waiting))}" if waiting else ""
            name = each.worker or each.address
            yield f"{name} has not answered for {each.silent_seconds:.0f} s{whom}: {each.problem}"


def _task_problems(blockers: _Blockers, rows: ClusterRows) -> Iterator[str]:
    tasks = {(each.worker, str(each.task)): each for each in rows.tasks}
    components = {each.component: each for each in rows.components}
    consumers = {(each.worker, task): each for each in rows.consumers for task in each.tasks}
    silent = {each.worker for each in rows.workers if each.state == NO_ANSWER}
    lost = {each.peer for each in rows.peers if not each.connected}

    def is_covered(row: TaskRow) -> bool:
        """Return True if slow_component_problems() covers its component, or the one that it waits for."""
        component = components.get(row.component)
        return component is not None and (component.busy >= BUSY_SHARE or component.blocked >= BLOCKED_SHARE)

    def reason(row: TaskRow) -> str:
        if (consumer := consumers.get((row.worker, row.task))) is not None:
            return f"{format_client(consumer.consumer)} has {consumer.outstanding_messages:,} unacknowledged"
        return "its consumer is not listed" if row.subscribed else "it has no consumer"

    for (worker, task), blocker in sorted(blockers.items(), key=lambda each: -each[1].share):
        row = tasks.get((worker, task))
        if worker in silent or (row is not None and is_covered(row)):
            continue
        of = f" of {row.component}" if row is not None and row.component else ""
        yield (
            f"task {task}{of} at {worker} blocks senders at {', '.join(blocker.blocked_workers)}, for "
            f"{blocker.share:.0%} of the last {blocker.interval_seconds:.0f} s: "
            f"{reason(row) if row else 'not connected' if worker in lost else f'see {worker} for why'}"
        )
    loaded = {at: row for at, row in tasks.items() if row.load >= _FULL_LEVEL}
    full = [row for at, row in loaded.items() if not (at in blockers or is_covered(row))]
    for row in select_rows(full)[:_MAX_FULL_QUEUES]:
        oldest = f", the oldest for {format_time(row.oldest_seconds)}" if row.oldest_seconds else ""
        yield (
            f"the queue of task {row.task} at {row.worker} is {row.load:.0%} full: {row.queued_messages:,} "
            f"messages wait{oldest}; {reason(row)}"
        )
    if len(full) > _MAX_FULL_QUEUES:
        yield f"and {len(full) - _MAX_FULL_QUEUES} more queues are nearly full"
