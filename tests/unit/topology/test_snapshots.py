"""Serialization of executors' reports and statistics for other processes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from tuplewire_topology.authoring.user_metrics import UserSample
from tuplewire_topology.running.heartbeat import ExecutorHeartbeat
from tuplewire_topology.running.receive_queue import QueueStatistics
from tuplewire_topology.running.statistics import Counts, ExecutorStatistics, Failure, Latency, ProcessReport
from tuplewire_topology.serial.serializer import from_values, to_values


def test_reports_and_statistics_travel() -> None:
    """Reports and snapshots survive a round trip, with and without a failure."""
    for report in (
        ProcessReport(at_rest=True, sent=1, taken=2),
        ProcessReport(at_rest=False, sent=1, taken=2, failure=Failure("why", "where")),
    ):
        assert from_values(ProcessReport, to_values(report)) == report
    counts = Counts(
        emitted_by=Counter({"default": 1}),
        transferred_by=Counter({"default": 2, "other": 3}),
        executed_by=Counter({("a", "default"): 4}),
        acked_by=Counter({("a", "default"): 3}),
        failed_by=Counter({("c", "other"): 1}),
        errors=5,
        execute=Latency(6, 0.5),
        process=Latency(7, 0.25),
        complete=Latency(),
        sending_seconds=1.5,
    )
    statistics = ExecutorStatistics("b", range(3, 5), counts, QueueStatistics(4, 5, 6, 7.5), 8)
    assert from_values(ExecutorStatistics, to_values(statistics)) == replace(statistics, metrics=[])
    samples = [
        UserSample(3, "n", "counter", 2.5),
        UserSample(4, "h", "histogram", 1.5, (1.0, 2.0), (0, 1, 2)),
    ]
    statistics = replace(statistics, metrics=samples, omitted=2, received_bytes={"a": 9})
    assert from_values(ExecutorStatistics, to_values(statistics)) == statistics
    beat = ExecutorHeartbeat("b", range(3, 5), 4, "execute", 1.5, 2.5, stuck=True)
    assert from_values(ExecutorHeartbeat, to_values(beat)) == beat
