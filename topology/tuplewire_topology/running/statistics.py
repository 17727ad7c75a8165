"""The statistics of an executor: counts by stream, times, and its current activity.

Used by executors, heartbeats and status pages. Owns the counts and times of an executor. Thread-safe. An
executor's thread writes its Tally, mostly once per column, and its Pulse at each step, and other threads read
them without a lock. Storm's heartbeats show that a process is alive; a pulse shows that a thread makes
progress. Design: docs/design/topologies.md. Source: Storm's `BoltExecutorStats` and `SpoutExecutorStats`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from operator import attrgetter
from typing import NamedTuple

from tuplewire_topology.authoring.tuples import Tuple, TupleSource
from tuplewire_topology.authoring.user_metrics import UserSample
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

    `calls` counts calls of user code. `turned` is the start of the current loop turn, by `clock`, in seconds.
    """

    task: int
    clock: Callable[[], float] = time.monotonic
    activity: ExecutorActivity = ExecutorActivity.STARTING
    calls: int = 0
    turned: float = 0.0

    def __post_init__(self) -> None:
        self.turn()

    def turn(self) -> None:
        """Record the start of a loop turn."""
        self.turned = self.clock()

    def enter(self, task: int, activity: ExecutorActivity) -> None:
        """Record the start of a call of user code for a task."""
        self.task = task
        self.activity = activity
        self.calls += 1


class CallWatch:
    """Measures the current call of user code from samples of a pulse, taken about once a second.

    The result is too short by at most the time between two samples.
    """

    def __init__(self, pulse: Pulse) -> None:
        self._pulse = pulse
        self._seen = (pulse.calls, pulse.activity)
        self._since = pulse.clock()

    def call_seconds(self) -> float:
        """Return the seconds since the current call of user code was first seen; 0 if there is none."""
        pulse = self._pulse
        now, seen = pulse.clock(), (pulse.calls, pulse.activity)
        if seen != self._seen or seen[1] in FRAMEWORK_ACTIVITIES:  # another call, or none
            self._seen, self._since = seen, now
        return now - self._since


StreamId = tuple[str, str]
"""A component and the name of one of its streams. Source: Storm's `GlobalStreamId`."""

_source = attrgetter("source")


@dataclass(frozen=True, slots=True)
class Latency:
    """The number of measurements, and their sum in seconds."""

    count: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Counts:
    """The totals of an executor, in tuples.

    Attributes:
        emitted_by: By its own streams.
        transferred_by: Copies of emitted tuples, one for each target task.
        executed_by, acked_by, failed_by: By source stream; the outcomes of a spout's tuples by its streams.
        execute: Time in a bolt's execute(), measured per column.
        process: From a bolt's execute() of a tuple until the ack, for one tracked tuple of each column.
        complete: From the emit of a spout's tuple until its ack.
        errors: Errors that tasks raised or reported.
        sending_seconds: Time to send emitted tuples, with the wait for free space.
    """

    emitted_by: Mapping[str, int]
    transferred_by: Mapping[str, int]
    executed_by: Mapping[StreamId, int]
    acked_by: Mapping[StreamId, int]
    failed_by: Mapping[StreamId, int]
    execute: Latency
    process: Latency
    complete: Latency
    errors: int
    sending_seconds: float

    @property
    def emitted(self) -> int:
        """Tuples emitted on all streams."""
        return sum(self.emitted_by.values())

    @property
    def transferred(self) -> int:
        """Copies of emitted tuples, for all target tasks."""
        return sum(self.transferred_by.values())

    @property
    def executed(self) -> int:
        """Tuples executed, from all sources."""
        return sum(self.executed_by.values())

    @property
    def acked(self) -> int:
        """Tuples acked, from all sources."""
        return sum(self.acked_by.values())

    @property
    def failed(self) -> int:
        """Tuples failed, from all sources."""
        return sum(self.failed_by.values())


@dataclass(frozen=True, slots=True)
class ExecutorStatistics:
    """A snapshot of an executor. `pending` is the number of its spout tuples in flight.

    `metrics` were registered by its tasks; `omitted` of them are not exported. `received_bytes` are payload
    bytes from other processes by sending component, if they are counted.
    """

    component: str
    tasks: range
    counts: Counts
    queue: QueueStatistics
    pending: int
    metrics: Sequence[UserSample] = ()
    omitted: int = 0
    received_bytes: Mapping[str, int] = field(default_factory=dict)


class ColumnAtWork(NamedTuple):
    """The column that a bolt executes, and the readings of clock, tally and pulse at its start."""

    began: float
    sending_seconds: float
    calls: int
    source: TupleSource
    length: int


class Tally:
    """The current totals. One thread writes, any thread reads."""

    def __init__(self) -> None:
        self.emitted: Counter[str] = Counter()
        self.transferred: Counter[str] = Counter()
        self.executed: Counter[TupleSource] = Counter()
        self.acked: Counter[TupleSource] = Counter()
        self.failed: Counter[TupleSource] = Counter()
        self.just_acked: list[TupleSource] = []
        """The sources of tuples acked since the last count_acked(); the executor appends to it."""
        self.errors = 0
        self.execute_seconds = 0.0
        self.process_count = 0
        self.process_seconds = 0.0
        self.complete_count = 0
        self.complete_seconds = 0.0
        self.sending_seconds = 0.0
        self.column: ColumnAtWork | None = None
        """The column in progress."""
        self.sends_since: float | None = None

    def count_executed(self, tuples: Sequence[Tuple]) -> None:
        """Count the tuples of an executed column."""
        _count(self.executed, list(map(_source, tuples)))

    def count_acked(self) -> None:
        """Count the tuples in `just_acked`."""
        if self.just_acked:
            _count(self.acked, self.just_acked)
            self.just_acked = []

    def at_work(self, pulse: Pulse) -> Counts:
        """Return the totals with the column in progress; `pulse` must be of the same thread.

        They may decrease slightly when the column ends.
        """
        counts, column, since = self.snapshot(), self.column, self.sends_since
        busy, sending, executed = counts.execute.seconds, counts.sending_seconds, Counter(counts.executed_by)
        now = pulse.clock()  # max() below guards against readings that do not match, as there is no lock
        if since is not None:
            sending += max(0.0, now - since)
        if column is not None:
            busy += max(0.0, now - column.began - max(0.0, sending - column.sending_seconds))
            done = min(column.length, max(0, pulse.calls - column.calls - 1))  # 1: enter() counts a call
            executed[column.source.component, column.source.stream.name] += done
        execute = Latency(executed.total(), busy)
        return replace(counts, executed_by=executed, execute=execute, sending_seconds=sending)

    def snapshot(self) -> Counts:
        """Return the current totals."""
        executed = _by_stream(self.executed)
        return Counts(
            emitted_by=self.emitted.copy(),
            transferred_by=self.transferred.copy(),
            executed_by=executed,
            acked_by=_by_stream(self.acked),
            failed_by=_by_stream(self.failed),
            errors=self.errors,
            execute=Latency(sum(executed.values()), self.execute_seconds),
            process=Latency(self.process_count, self.process_seconds),
            complete=Latency(self.complete_count, self.complete_seconds),
            sending_seconds=self.sending_seconds,
        )


class ExecutorLoad:
    """The load of an executor: the expected wait of a new tuple.

    The wait is the number of tuples before it, times the recent time per tuple. The fill of the queue is not
    enough: 2,000 tuples are 6 % of a queue, and may take 12 s. Design: docs/design/topologies.md.
    """

    def __init__(self) -> None:
        self._executed = 0
        self._seconds = 0.0
        self._per_tuple = 0.0

    def update(self, arrived: int, executed: int, seconds: float) -> float:
        """Return a wait of w seconds as w / (1 + w). The arguments are totals; `seconds` is busy time."""
        tuples, spent = executed - self._executed, max(0.0, seconds - self._seconds)
        self._executed, self._seconds = executed, seconds
        latest = spent / tuples if tuples > 0 else max(self._per_tuple, spent)  # else one took it all
        self._per_tuple = (self._per_tuple + latest) / 2 if self._per_tuple else latest  # smoothed
        wait = max(0, arrived - executed) * self._per_tuple
        return wait / (1.0 + wait)


def _count(counts: Counter[TupleSource], sources: list[TupleSource]) -> None:
    """Count sources. They are nearly always equal, and then cost one addition."""
    if sources.count(sources[0]) == len(sources):
        counts[sources[0]] += len(sources)
    else:
        counts.update(sources)


def _by_stream(counts: Counter[TupleSource]) -> Counter[StreamId]:
    """Add up the counts of all tasks of a component."""
    streams: Counter[StreamId] = Counter()
    for source, count in list(counts.items()):  # a copy: the executor's thread may add a key
        streams[source.component, source.stream.name] += count
    return streams
