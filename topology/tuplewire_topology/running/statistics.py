"""The statistics of an executor, and the reports and failures of a process.

Used by executors, heartbeats, status pages, and code that waits for the end of a topology. Owns the counts
and times of an executor. Thread-safe. An executor's thread writes its Tally, mostly once per column, and its
Pulse at each step, and other threads read them without a lock. Storm's heartbeats show that a process is
alive; a pulse shows that a thread makes progress. Design: docs/design/topologies.md. Source: Storm's
`BoltExecutorStats` and `SpoutExecutorStats`.
"""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields
from enum import StrEnum
from operator import attrgetter
from typing import NamedTuple, Self

from tuplewire.errors import TuplewireError
from tuplewire.text.formatting import encodable
from tuplewire_topology.authoring.tuples import StreamId, Tuple, TupleSource
from tuplewire_topology.authoring.user_metrics import MetricSnapshot
from tuplewire_topology.running.receive_queue import QueueStatistics


class ExecutorActivity(StrEnum):
    """The activity of a thread. In user code, it has the name of the method."""

    STARTING = "starting"
    WAITING = "waiting"
    SENDING = "sending"
    ENDED = "ended"
    OPEN = "open"
    PREPARE = "prepare"
    ACTIVATE = "activate"
    DEACTIVATE = "deactivate"
    NEXT_TUPLE = "next_tuple"
    ACK = "ack"
    FAIL = "fail"
    EXECUTE = "execute"
    CLOSE = "close"
    CLEANUP = "cleanup"


FRAMEWORK_ACTIVITIES = frozenset(
    [ExecutorActivity.STARTING, ExecutorActivity.WAITING, ExecutorActivity.SENDING, ExecutorActivity.ENDED]
)
"""The activities outside user code."""


@dataclass(slots=True)
class Pulse:
    """The current activity of an executor's thread, which writes it. Costs one addition per tuple.

    `step_count` counts calls of user code, columns and sends. `iteration_start`: the start of the loop turn.
    """

    task: int
    clock: Callable[[], float] = time.monotonic
    activity: ExecutorActivity = ExecutorActivity.STARTING
    step_count: int = 0
    iteration_start: float = field(init=False)
    _last_sample: tuple[int, ExecutorActivity] = (0, ExecutorActivity.STARTING)
    """`step_count` and `activity` at the last call of call_seconds()."""
    _last_sample_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._last_sample_at = self.iteration_start = self.clock()

    def enter(self, task: int, activity: ExecutorActivity) -> None:
        """Record the start of a call of user code, or the return to it after a send."""
        self.task = task
        self.activity = activity
        self.step_count += 1

    def call_seconds(self) -> float:
        """Return the seconds since this method first saw the current call of user code; 0 if there is none.

        Call this about once a second, from one thread. The result is too short by at most that time.
        """
        now, seen = self.clock(), (self.step_count, self.activity)
        if seen != self._last_sample or seen[1] in FRAMEWORK_ACTIVITIES:  # another call, or none
            self._last_sample, self._last_sample_at = seen, now
        return now - self._last_sample_at


_source = attrgetter("source")


@dataclass(slots=True)
class LatencySum:
    """The number of measurements, and their sum in seconds."""

    count: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class Counts:
    """The totals of an executor, in tuples.

    Attributes:
        emitted_by: By its own streams.
        transferred_by: Copies of emitted tuples, one for each target task.
        executed_by, acked_by, failed_by: By source stream; of a spout by its streams.
        execute: Time in a bolt's execute(), measured per column.
        process: From a bolt's execute() of a tuple until the ack, for one tracked tuple of each column.
        complete: From the emit of a spout's tuple until its ack.
        errors: Errors that tasks raised or reported.
        sending_seconds: Time to send emitted tuples, with the wait for free space.
    """

    emitted_by: Counter[str] = field(default_factory=Counter)
    transferred_by: Counter[str] = field(default_factory=Counter)
    executed_by: Counter[StreamId] = field(default_factory=Counter)
    acked_by: Counter[StreamId] = field(default_factory=Counter)
    failed_by: Counter[StreamId] = field(default_factory=Counter)
    execute: LatencySum = field(default_factory=LatencySum)
    process: LatencySum = field(default_factory=LatencySum)
    complete: LatencySum = field(default_factory=LatencySum)
    errors: int = 0
    sending_seconds: float = 0.0

    @property
    def emitted(self) -> int:
        """Tuples emitted on all streams."""
        return self.emitted_by.total()

    @property
    def transferred(self) -> int:
        """Copies of emitted tuples, for all target tasks."""
        return self.transferred_by.total()

    @property
    def executed(self) -> int:
        """Tuples executed, from all sources."""
        return self.executed_by.total()

    @property
    def acked(self) -> int:
        """Tuples acked, from all sources."""
        return self.acked_by.total()

    @property
    def failed(self) -> int:
        """Tuples failed, from all sources."""
        return self.failed_by.total()


@dataclass(frozen=True, slots=True)
class ExecutorStatistics:
    """A snapshot of an executor. `pending_tuples` is the number of its tracked spout tuples.

    `metrics` were registered by its tasks; `omitted_count` of them are not exported. `received_bytes` are
    payload bytes from other processes by sending component, if they are counted.
    """

    component: str
    tasks: range
    counts: Counts
    queue: QueueStatistics
    pending_tuples: int
    metrics: Sequence[MetricSnapshot] = ()
    omitted_count: int = 0
    received_bytes: Mapping[str, int] = field(default_factory=dict)


class CurrentColumn(NamedTuple):
    """The column that a bolt executes, and the readings of clock, tally and pulse at its start."""

    start: float
    sending_seconds: float
    calls: int
    source: TupleSource
    length: int


@dataclass(slots=True)
class Tally(Counts):
    """The current totals. One thread writes, any thread reads.

    `uncounted_acks` are the sources of tuples acked since the last count_acked(); the executor appends to it.
    `column` is the column in progress, and `send_start` the start of the send in progress, if any.
    """

    uncounted_acks: list[TupleSource] = field(default_factory=list)
    column: CurrentColumn | None = None
    send_start: float | None = None

    def count_executed(self, tuples: Sequence[Tuple]) -> None:
        """Count the tuples of an executed column."""
        _count(self.executed_by, list(map(_source, tuples)))
        self.execute.count += len(tuples)

    def count_acked(self) -> None:
        """Count the tuples in `uncounted_acks`."""
        if self.uncounted_acks:
            _count(self.acked_by, self.uncounted_acks)
            self.uncounted_acks = []

    def live_totals(self, pulse: Pulse) -> Counts:
        """Return totals with an estimate for the column in progress. `pulse` is the executor's."""
        counts, column, send_start = self.snapshot(), self.column, self.send_start
        now = pulse.clock()  # max() below guards against readings that do not match, as there is no lock
        if send_start is not None:
            counts.sending_seconds += max(0.0, now - send_start)
        if column is not None:
            sending = max(0.0, counts.sending_seconds - column.sending_seconds)
            counts.execute.seconds += max(0.0, now - column.start - sending)
            done = min(column.length, max(0, pulse.step_count - column.calls - 1))  # 1: enter(); sends count
            counts.execute.count += done
            counts.executed_by[column.source.stream_id] += done
        return counts

    def snapshot(self) -> Counts:
        """Return the current totals."""
        return Counts(*(copy(getattr(self, each.name)) for each in fields(Counts)))


class ExecutorLoad:
    """The load of an executor: the expected wait of a new tuple.

    The wait is the number of tuples before it, times the recent time per tuple. The fill of the queue is not
    enough: 2,000 tuples are 6 % of a queue, and may take 12 s. Design: docs/design/topologies.md.
    """

    def __init__(self) -> None:
        self._executed = 0
        self._busy_seconds = 0.0
        self._per_tuple = 0.0

    def update(self, arrived: int, executed: int, busy_seconds: float) -> float:
        """Return wait / (1 + wait), for the expected wait in seconds. The arguments are totals."""
        tuples, spent = executed - self._executed, max(0.0, busy_seconds - self._busy_seconds)
        self._executed, self._busy_seconds = executed, busy_seconds
        latest = spent / tuples if tuples > 0 else max(self._per_tuple, spent)  # at least `spent`
        self._per_tuple = (self._per_tuple + latest) / 2 if self._per_tuple else latest  # smoothed
        wait = max(0, arrived - executed) * self._per_tuple
        return wait / (1.0 + wait)


def _count(counts: Counter[StreamId], sources: list[TupleSource]) -> None:
    """Count sources. They are nearly always equal, and then cost one addition."""
    if sources.count(sources[0]) == len(sources):
        counts[sources[0].stream_id] += len(sources)
    else:
        counts.update(source.stream_id for source in sources)


@dataclass(frozen=True, slots=True)
class Failure:
    """The error of a failed process, as text. `traceback` includes the user's code."""

    summary: str
    traceback: str

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """Return an error as text that can be encoded, with its causes."""
        return cls(encodable(str(error)), encodable("".join(traceback.format_exception(error))))


class ProcessFailedError(TuplewireError):
    """A process of a topology has failed. A note has the traceback in that process."""

    def __init__(self, process: str, failure: Failure) -> None:
        super().__init__(f"{process} has failed: {failure.summary}")
        self.process = process
        self.failure = failure
        self.add_note(f"In {process}:\n{failure.traceback.rstrip()}")


@dataclass(frozen=True, slots=True)
class ProcessReport:
    """The state of one process at one moment, with the number of tuples passed to the link so far.

    `is_idle` is True if no tuple is queued or running, and all spouts are exhausted or inactive. `received`
    is the number of tuples received from the link, or lost by it.
    """

    is_idle: bool
    sent: int
    received: int
    failure: Failure | None = None
