"""Converts snapshots of executors to a worker's metrics. Source: Storm's built-in metrics.

Used by clusters and PySpark tasks for their workers. Owns no state. Thread-safe. Tuples are counted by
component and stream, and the rest by executor, so the topology limits the number of series.
Design: docs/design/topologies.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from tuplewire.wire import control_pb2 as pb
from tuplewire_topology.authoring.user_metrics import MetricKind
from tuplewire_topology.running.heartbeat import ExecutorBeat
from tuplewire_topology.running.statistics import Counts, ExecutorStatistics, Latency

_PREFIX = "tuplewire_"
_KINDS = {
    MetricKind.COUNTER: pb.METRIC_KIND_COUNTER,
    MetricKind.GAUGE: pb.METRIC_KIND_GAUGE,
    MetricKind.HISTOGRAM: pb.METRIC_KIND_HISTOGRAM,
}

_Snapshot = TypeVar("_Snapshot", bound=ExecutorStatistics | ExecutorBeat)
_Samples = Iterable[tuple[tuple[str, ...], float]]
"""Labels after the component, and the value."""
_Table = Mapping[str, tuple[str, Callable[[_Snapshot], _Samples]]]


def _by_executor(each: ExecutorStatistics | ExecutorBeat, value: float) -> _Samples:
    """Return one sample, labelled with the executor's tasks."""
    return [((f"{each.tasks[0]}-{each.tasks[-1]}",), value)]


_BY_STREAM: _Table[ExecutorStatistics] = {
    "emitted_tuples": (
        "Tuples that a component emitted, by its stream. Storm: __emit-count.",
        lambda each: [((stream,), count) for stream, count in each.counts.emitted_by.items()],
    ),
    "transferred_tuples": (
        "Copies of what a component emitted, one for each task that gets one. Storm: __transfer-count.",
        lambda each: [((stream,), count) for stream, count in each.counts.transferred_by.items()],
    ),
}
_BY_SOURCE: _Table[ExecutorStatistics] = {
    "executed_tuples": (
        "Tuples that a component executed, by who emitted them. Storm: __execute-count.",
        lambda each: each.counts.executed_by.items(),
    ),
    "acked_tuples": (
        "Tuples that a bolt acked, or that a spout was told are processed. Storm: __ack-count.",
        lambda each: each.counts.acked_by.items(),
    ),
    "failed_tuples": (
        "Tuples that a bolt failed, or that a spout was told have failed. Storm: __fail-count.",
        lambda each: each.counts.failed_by.items(),
    ),
}
_BY_COMPONENT: _Table[ExecutorStatistics] = {
    "task_errors": (
        "Errors that tasks raised or reported.",
        lambda each: [((), each.counts.errors)],
    ),
    "sending_seconds": (
        "Time until what was emitted had found room. Storm, of spouts: __skipped-backpressure-ms.",
        lambda each: [((), each.counts.sending_seconds)],
    ),
}
_BY_SENDER: _Table[ExecutorStatistics] = {
    "serialized_bytes": (
        "Payload bytes of tuples that came from another process, by the component that sent them.",
        lambda each: [((sender,), size) for sender, size in each.received_bytes.items()],
    ),
}
_PENDING: _Table[ExecutorStatistics] = {
    "spout_pending_tuples": ("Tuples of a spout that are on the way.", lambda each: [((), each.pending)]),
}
_QUEUES: _Table[ExecutorStatistics] = {
    "receive_queue_tuples": (
        "Tuples in an executor's queue. Storm: __receive-population.",
        lambda each: _by_executor(each, each.queue.population),
    ),
    "receive_queue_capacity_tuples": (
        "Bound of an executor's queue. Storm: __receive-capacity.",
        lambda each: _by_executor(each, each.queue.capacity),
    ),
    "receive_queue_fill_ratio": (
        "How full an executor's queue is, 0 to 1. Storm: __receive-pct_full.",
        lambda each: _by_executor(each, each.queue.fill),
    ),
    "receive_queue_overflow_tuples": (
        "Tuples in an executor's queue over its bound. Storm: __receive-overflow.",
        lambda each: _by_executor(each, each.queue.overflow),
    ),
    "receive_queue_arrivals_per_second": (
        "Tuples that arrive in an executor's queue, over ten seconds. Storm: __receive-arrival_rate_secs.",
        lambda each: _by_executor(each, each.queue.arrival_rate),
    ),
    "receive_queue_sojourn_seconds": (
        "How long a tuple waits in an executor's queue. Storm: __receive-sojourn_time_ms.",
        lambda each: _by_executor(each, each.queue.sojourn_seconds),
    ),
}
_ARRIVED: _Table[ExecutorStatistics] = {
    "receive_queue_arrived_tuples": (
        "Tuples that have arrived in an executor's queue.",
        lambda each: _by_executor(each, each.queue.arrived),
    ),
}
_BEATS: _Table[ExecutorBeat] = {
    "executor_call_seconds": (
        "For how long an executor has been in one call of a spout or bolt, at the last heartbeat.",
        lambda each: _by_executor(each, each.call_seconds),
    ),
    "executor_loop_age_seconds": (
        "How long before the last heartbeat an executor's loop had begun anew.",
        lambda each: _by_executor(each, each.turned_seconds),
    ),
    "executor_stuck": (
        "1 while that call takes longer than nimbus.task.timeout.secs, else 0.",
        lambda each: _by_executor(each, each.stuck),
    ),
}
_LATENCIES: Sequence[tuple[str, str, Callable[[Counts], Latency]]] = [
    (
        "execute_latency_seconds",
        "Time in a bolt's execute(). The rate of its sum is Storm's capacity. Storm: __execute-latency.",
        lambda counts: counts.execute,
    ),
    (
        "process_latency_seconds",
        "Time from a bolt's execute() to the tuple's ack, for one of each column. Storm: __process-latency.",
        lambda counts: counts.process,
    ),
    (
        "complete_latency_seconds",
        "Time from a spout's emit until it is told that the tuple is processed. Storm: __complete-latency.",
        lambda counts: counts.complete,
    ),
]


def metric_families(
    statistics: Sequence[ExecutorStatistics], beats: Sequence[ExecutorBeat]
) -> list[pb.MetricFamily]:
    """Return Storm's built-in metrics, and those registered by tasks, of all executors of this process.

    All executors must belong to the same topology.
    """
    counter, gauge = pb.METRIC_KIND_COUNTER, pb.METRIC_KIND_GAUGE
    left_out: _Table[ExecutorStatistics] = {
        "left_out_metrics": (
            "Metrics that spouts and bolts have registered, and that are over a bound of series.",
            lambda each: [((), each.left_out)],
        )
    }
    return [
        *_families(counter, _BY_STREAM, statistics, "stream"),
        *_families(counter, _BY_SOURCE, statistics, "source", "stream"),
        *_latencies(statistics),
        *_families(counter, _BY_COMPONENT, statistics),
        *_families(counter, _BY_SENDER, statistics, "source"),
        *_families(gauge, left_out, statistics),
        *_families(gauge, _PENDING, statistics),
        *_families(gauge, _QUEUES, statistics, "executor"),
        *_families(counter, _ARRIVED, statistics, "executor"),
        *_families(gauge, _BEATS, beats, "executor"),
        *_registered(statistics),
    ]


def _families(
    kind: pb.MetricKind, table: _Table[_Snapshot], snapshots: Sequence[_Snapshot], *labels: str
) -> Iterator[pb.MetricFamily]:
    for name, (text, samples) in table.items():
        sums: defaultdict[tuple[str, ...], float] = defaultdict(float)
        for each in snapshots:
            for own, number in samples(each):
                sums[each.component, *own] += number
        family = pb.MetricFamily(name=_PREFIX + name, help=text, kind=kind, labels=["component", *labels])
        for values, total in sorted(sums.items()):
            family.samples.add(labels=values, value=total)
        yield family


def _latencies(statistics: Sequence[ExecutorStatistics]) -> Iterator[pb.MetricFamily]:
    for name, text, latency_of in _LATENCIES:
        family = pb.MetricFamily(
            name=_PREFIX + name, help=text, kind=pb.METRIC_KIND_SUMMARY, labels=["component"]
        )
        for component in sorted({executor.component for executor in statistics}):
            timed = [latency_of(each.counts) for each in statistics if each.component == component]
            count, seconds = sum(each.count for each in timed), sum(each.seconds for each in timed)
            if count:  # a bolt completes nothing, and a spout executes nothing
                family.samples.add(labels=[component], value=seconds, counts=[count])
        yield family


def _registered(statistics: Sequence[ExecutorStatistics]) -> Iterable[pb.MetricFamily]:
    """Return registered metrics. Workers may use a name for two kinds, which gives two families."""
    families: dict[tuple[str, str], pb.MetricFamily] = {}
    for executor in statistics:
        for task, name, kind, value, bounds, counts in executor.metrics:
            if (family := families.get((name, kind))) is None:
                family = families[name, kind] = pb.MetricFamily(
                    name=f"{_PREFIX}user_{name}",
                    help="Registered by a spout or bolt.",
                    kind=_KINDS[MetricKind(kind)],
                    labels=["component", "task"],
                )
            labels = [executor.component, str(task)]
            family.samples.add(labels=labels, value=value, bounds=bounds, counts=counts)
    return families.values()
