"""What an executor has done: counts by stream, and times.

Source: Storm's `BoltExecutorStats`, `SpoutExecutorStats`. An executor's thread adds to a Tally, once for a
column where it can; others take snapshots of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from tuplewire.topology.running.receive_queue import QueueStatistics
from tuplewire.topology.tuples import Tuple, TupleSource

StreamId = tuple[str, str]
"""The component that emitted, and the name of its stream. Source: Storm's `GlobalStreamId`."""

_source = attrgetter("source")


@dataclass(frozen=True, slots=True)
class Latency:
    """How often something was timed, and the sum, in seconds."""

    count: int = 0
    seconds: float = 0.0

    @property
    def mean(self) -> float:
        """The average in seconds; 0 where there is none."""
        return self.seconds / self.count if self.count else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
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
    errors: int
    execute: Latency
    process: Latency
    complete: Latency
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
class ExecutorStatistics:
    """A snapshot of an executor. pending: tuples of its spouts that are on the way."""

    component: str
    tasks: range
    counts: Counts
    queue: QueueStatistics
    pending: int


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

    def count_executed(self, tuples: Sequence[Tuple]) -> None:
        """Count a column."""
        _count(self.executed, list(map(_source, tuples)))

    def count_acked(self) -> None:
        """Count what was acked since the last time."""
        if self.just_acked:
            _count(self.acked, self.just_acked)
            self.just_acked = []

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
