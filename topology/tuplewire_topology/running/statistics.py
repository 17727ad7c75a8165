"""What an executor is doing, and has done: counts by stream, and times.

Source: Storm's `BoltExecutorStats`, `SpoutExecutorStats`. An executor's thread adds to a Tally, once for a
column where it can, and to a Pulse at every step; others read them without a lock. Storm's heartbeats say
that the process lives; a pulse says that a thread does.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from enum import StrEnum
from operator import attrgetter
from typing import Any, NamedTuple

from tuplewire_topology.authoring.tuples import Tuple, TupleSource
from tuplewire_topology.authoring.user_metrics import UserSample
from tuplewire_topology.running.receive_queue import QueueStatistics


class Doing(StrEnum):
    """Where a thread is; the user's code has the names of its methods."""

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


OURS = frozenset([Doing.STARTING, Doing.WAITING, Doing.SENDING, Doing.ENDED])
"""What is not the user's code."""


@dataclass(slots=True)
class Pulse:
    """What an executor's thread is doing, written by itself; an addition per tuple.

    task: whose turn it is. calls: how often the user's code was called. turned: when the loop last began
    anew, in seconds of the clock.
    """

    task: int
    clock: Callable[[], float] = time.monotonic
    doing: Doing = Doing.STARTING
    calls: int = 0
    turned: float = 0.0

    def __post_init__(self) -> None:
        self.turn()

    def turn(self) -> None:
        """Begin the loop anew."""
        self.turned = self.clock()

    def enter(self, task: int, doing: Doing) -> None:
        """Begin to call the user's code for a task."""
        self.task = task
        self.doing = doing
        self.calls += 1


class CallWatch:
    """Tells from looks at a pulse, every second or so, for how long it has been within one call.

    What it says is too little by the time between two looks at most.
    """

    def __init__(self, pulse: Pulse) -> None:
        self._pulse = pulse
        self._seen = (pulse.calls, pulse.doing)
        self._since = pulse.clock()

    def look(self) -> float:
        """Return for how many seconds one call of the user's code has been going on; 0 when none is."""
        pulse = self._pulse
        now, seen = pulse.clock(), (pulse.calls, pulse.doing)
        if seen != self._seen or seen[1] in OURS:
            self._seen, self._since = seen, now
        return now - self._since


StreamId = tuple[str, str]
"""The component that emitted, and the name of its stream. Source: Storm's `GlobalStreamId`."""

_source = attrgetter("source")


@dataclass(frozen=True, slots=True)
class Latency:
    """How often something was timed, and the sum, in seconds."""

    count: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Counts:
    """What an executor has done so far, in tuples.

    emitted_by: by its own streams. transferred_by: copies of them, one for each task that gets one.
    executed_by, acked_by, failed_by: by who emitted the tuple; for a spout these are told to it, by its own
    streams. errors: raised or reported. execute: in a bolt's execute(), each column timed as a whole.
    process: from a bolt's execute() of a tuple until it is acked, for one anchored tuple of each column.
    complete: from a spout's emit until it hears that the tuple is processed. sending_seconds: until what was
    emitted had found room.
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
        """Tuples emitted, on all streams."""
        return sum(self.emitted_by.values())

    @property
    def transferred(self) -> int:
        """Copies of them."""
        return sum(self.transferred_by.values())

    @property
    def executed(self) -> int:
        """Tuples executed, of all sources."""
        return sum(self.executed_by.values())

    @property
    def acked(self) -> int:
        """Tuples acked, of all sources."""
        return sum(self.acked_by.values())

    @property
    def failed(self) -> int:
        """Tuples failed, of all sources."""
        return sum(self.failed_by.values())


@dataclass(frozen=True, slots=True)
class AtWork:
    """What Counts says, with the column that is under way; may go back by a moment when that ends.

    busy_seconds: in a bolt's execute(). sending_seconds: until what was emitted had found room.
    """

    busy_seconds: float = 0.0
    sending_seconds: float = 0.0
    executed_by: Mapping[StreamId, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExecutorStatistics:
    """A snapshot of an executor.

    pending: tuples of its spouts that are on the way. at_work: see AtWork. metrics: what its tasks have
    registered. left_out: how many of these are not told. received_bytes: payload bytes from other processes,
    by the component that sent them, where they are counted.
    """

    component: str
    tasks: range
    counts: Counts
    queue: QueueStatistics
    pending: int
    at_work: AtWork
    metrics: Sequence[UserSample] = ()
    left_out: int = 0
    received_bytes: Mapping[str, int] = field(default_factory=dict)


class ColumnAtWork(NamedTuple):
    """Tuples that a bolt executes now. began, sending_seconds, calls: of clock, tally and pulse before it."""

    began: float
    sending_seconds: float
    calls: int
    source: TupleSource
    length: int


class Tally:
    """Counts as they grow; written by one thread, and read by any."""

    def __init__(self) -> None:
        self.emitted: Counter[str] = Counter()
        self.transferred: Counter[str] = Counter()
        self.executed: Counter[TupleSource] = Counter()
        self.acked: Counter[TupleSource] = Counter()
        self.failed: Counter[TupleSource] = Counter()
        self.just_acked: list[TupleSource] = []
        """Where what was acked since count_acked() had come from; for the executor to append to."""
        self.errors = 0
        self.execute_seconds = 0.0
        self.process_count = 0
        self.process_seconds = 0.0
        self.complete_count = 0
        self.complete_seconds = 0.0
        self.sending_seconds = 0.0
        self.column: ColumnAtWork | None = None
        """The one that is executed now."""
        self.sends_since: float | None = None

    def count_executed(self, tuples: Sequence[Tuple]) -> None:
        """Count a column."""
        _count(self.executed, list(map(_source, tuples)))

    def count_acked(self) -> None:
        """Count what was acked since the last time."""
        if self.just_acked:
            _count(self.acked, self.just_acked)
            self.just_acked = []

    def at_work(self, pulse: Pulse) -> AtWork:
        """Return the counts with what is under way, by the pulse of the same thread."""
        busy, executed, column = self.execute_seconds, _by_stream(self.executed), self.column
        sending, since = self.sending_seconds, self.sends_since
        now = pulse.clock()
        if since is not None:
            sending += max(0.0, now - since)
        if column is not None:
            busy += max(0.0, now - column.began - max(0.0, sending - column.sending_seconds))
            done = min(column.length, max(0, pulse.calls - column.calls - 1))
            executed[column.source.component, column.source.stream.name] += done
        return AtWork(busy, sending, executed)

    def snapshot(self) -> Counts:
        """Return the counts of now."""
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
    """How long a tuple that arrives now is going to wait: the tuples before it, times the time of each.

    That is what a sender that has a choice wants to know. How full the queue is says little of it: 2,000
    tuples are 6 % of a queue, and may take 12 s. See docs/design/topologies.md.
    """

    def __init__(self) -> None:
        self._executed = 0
        self._seconds = 0.0
        self._per_tuple = 0.0

    def look(self, arrived: int, executed: int, seconds: float) -> float:
        """Return a wait of w seconds as w / (1 + w), by the counts so far and the seconds that they took."""
        tuples, spent = executed - self._executed, max(0.0, seconds - self._seconds)
        self._executed, self._seconds = executed, seconds
        latest = spent / tuples if tuples > 0 else max(self._per_tuple, spent)
        self._per_tuple = (self._per_tuple + latest) / 2 if self._per_tuple else latest
        wait = max(0, arrived - executed) * self._per_tuple
        return wait / (1.0 + wait)


def _count(counts: Counter[TupleSource], sources: list[TupleSource]) -> None:
    """Count sources, which are one and the same nearly always."""
    if sources.count(sources[0]) == len(sources):
        counts[sources[0]] += len(sources)
    else:
        counts.update(sources)


def _by_stream(counts: Counter[TupleSource]) -> Counter[StreamId]:
    """Add up what the tasks of a component have emitted."""
    streams: Counter[StreamId] = Counter()
    for source, count in list(counts.items()):
        streams[source.component, source.stream.name] += count
    return streams


def from_statistics(statistics: ExecutorStatistics) -> list[Any]:
    """Return a snapshot of an executor as values."""
    counts = statistics.counts
    return [
        statistics.component,
        [statistics.tasks.start, statistics.tasks.stop],
        [dict(counts.emitted_by), dict(counts.transferred_by)],
        [
            [[*source, count] for source, count in each.items()]
            for each in (counts.executed_by, counts.acked_by, counts.failed_by)
        ],
        [list(astuple(each)) for each in (counts.execute, counts.process, counts.complete)],
        [counts.errors, counts.sending_seconds],
        list(astuple(statistics.queue)),
        statistics.pending,
        [
            statistics.at_work.busy_seconds,
            statistics.at_work.sending_seconds,
            [[*source, count] for source, count in statistics.at_work.executed_by.items()],
        ],
        [list(each) for each in statistics.metrics],
        [statistics.left_out, dict(statistics.received_bytes)],
    ]


def to_statistics(values: Sequence[Any]) -> ExecutorStatistics:
    """Return the snapshot that from_statistics was given."""
    component, tasks, own, sources, latencies, others, queue, pending, at_work, metrics, more = values
    by_source = ({(source, stream): count for source, stream, count in each} for each in sources)
    counts = Counts(*own, *by_source, *(Latency(*each) for each in latencies), *others)
    busy, sending, executed = at_work
    working = AtWork(busy, sending, {(source, stream): count for source, stream, count in executed})
    samples = [
        UserSample(task, name, kind, value, tuple(bounds), tuple(each))
        for task, name, kind, value, bounds, each in metrics
    ]
    return ExecutorStatistics(
        component, range(*tasks), counts, QueueStatistics(*queue), pending, working, samples, *more
    )
