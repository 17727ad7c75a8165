"""Serialization of executors' reports and statistics for other processes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from tuplewire.packing.packing import pack_values, read_value
from tuplewire_topology.authoring.user_metrics import MetricSnapshot
from tuplewire_topology.running.heartbeat import ExecutorHeartbeat
from tuplewire_topology.running.receive_queue import QueueStatistics
from tuplewire_topology.running.statistics import (
    Counts,
    ExecutorStatistics,
    Failure,
    LatencySum,
    ProcessReport,
)
from tuplewire_topology.serial.serializer import from_lists, to_lists


def test_reports_and_statistics_travel() -> None:
    """Reports and snapshots survive a round trip, with and without a failure."""
    for report in (
        ProcessReport(is_idle=True, sent=1, received=2),
        ProcessReport(is_idle=False, sent=1, received=2, failure=Failure.of(OSError("no file \udcff"))),
    ):
        assert from_lists(ProcessReport, read_value(pack_values([to_lists(report)]), 0)[0][0]) == report
    counts = Counts(
        emitted_by=Counter({"default": 1}),
        transferred_by=Counter({"default": 2, "other": 3}),
        executed_by=Counter({("a", "default"): 4}),
        acked_by=Counter({("a", "default"): 3}),
        failed_by=Counter({("c", "other"): 1}),
        errors=5,
        execute=LatencySum(6, 0.5),
        process=LatencySum(7, 0.25),
        complete=LatencySum(),
        sending_seconds=1.5,
    )
    statistics = ExecutorStatistics("b", range(3, 5), counts, QueueStatistics(4, 5, 6, 7.5), 8)
    assert from_lists(ExecutorStatistics, to_lists(statistics)) == replace(statistics, metrics=[])
    samples = [
        MetricSnapshot(3, "n", "counter", 2.5),
        MetricSnapshot(4, "h", "histogram", 1.5, (1.0, 2.0), (0, 1, 2)),
    ]
    statistics = replace(statistics, metrics=samples, omitted_count=2, received_bytes={"a": 9})
    assert from_lists(ExecutorStatistics, to_lists(statistics)) == statistics
    beat = ExecutorHeartbeat("b", range(3, 5), 4, "execute", 1.5, 2.5, stuck=True)
    assert from_lists(ExecutorHeartbeat, to_lists(beat)) == beat
