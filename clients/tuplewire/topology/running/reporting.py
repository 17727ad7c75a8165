"""What a process says of itself, as values that travel to another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import Any

from tuplewire.topology.running.heartbeat import ExecutorBeat
from tuplewire.topology.running.receive_queue import QueueStatistics
from tuplewire.topology.running.statistics import Counts, ExecutorStatistics, Latency, StreamId
from tuplewire.topology.running.termination import Failure, ProcessReport


def from_report(report: ProcessReport) -> list[Any]:
    """Return a report as values."""
    failure = None if report.failure is None else [report.failure.summary, report.failure.traceback]
    return [report.at_rest, report.sent, report.taken, failure]


def to_report(values: Sequence[Any]) -> ProcessReport:
    """Return the report that from_report was given."""
    at_rest, sent, taken, failure = values
    return ProcessReport(at_rest, sent, taken, None if failure is None else Failure(*failure))


def from_statistics(statistics: ExecutorStatistics) -> list[Any]:
    """Return a snapshot of an executor as values."""
    counts = statistics.counts
    return [
        statistics.component,
        [statistics.tasks.start, statistics.tasks.stop],
        [dict(counts.emitted_by), dict(counts.transferred_by)],
        [_from_sources(each) for each in (counts.executed_by, counts.acked_by, counts.failed_by)],
        [list(astuple(each)) for each in (counts.execute, counts.process, counts.complete)],
        [counts.errors, counts.sending_seconds],
        list(astuple(statistics.queue)),
        statistics.pending,
    ]


def to_statistics(values: Sequence[Any]) -> ExecutorStatistics:
    """Return the snapshot that from_statistics was given."""
    component, tasks, (emitted, transferred), sources, latencies, others, queue, pending = values
    executed, acked, failed = map(_to_sources, sources)
    execute, process, complete = (Latency(*each) for each in latencies)
    counts = Counts(
        emitted_by=emitted,
        transferred_by=transferred,
        executed_by=executed,
        acked_by=acked,
        failed_by=failed,
        errors=others[0],
        execute=execute,
        process=process,
        complete=complete,
        sending_seconds=others[1],
    )
    return ExecutorStatistics(component, range(*tasks), counts, QueueStatistics(*queue), pending)


def from_beat(beat: ExecutorBeat) -> list[Any]:
    """Return what an executor is doing as values."""
    component, tasks, *others = astuple(beat)
    return [component, [tasks.start, tasks.stop], *others]


def to_beat(values: Sequence[Any]) -> ExecutorBeat:
    """Return what from_beat was given."""
    component, tasks, *others = values
    return ExecutorBeat(component, range(*tasks), *others)


def _from_sources(counts: Mapping[StreamId, int]) -> list[list[Any]]:
    return [[component, stream, count] for (component, stream), count in counts.items()]


def _to_sources(values: Sequence[Sequence[Any]]) -> dict[StreamId, int]:
    return {(component, stream): count for component, stream, count in values}
