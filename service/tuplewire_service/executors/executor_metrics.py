"""Prometheus metrics of executors, read from snapshots at each scrape. Source: Storm's built-in metrics.

Nothing is paid for them between scrapes. What tasks do is added up by component and stream;
queues and threads are told by executor. So there are as many series as a topology has of these.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tuplewire.topology.running.heartbeat import ExecutorBeat
from tuplewire.topology.running.statistics import Counts, ExecutorStatistics, Latency
from tuplewire_service.admin.registered_families import (
    RegisteredSample,
    Reported,
    left_out_family,
    registered_families,
)

_PREFIX = "tuplewire_"

_Snapshot = TypeVar("_Snapshot", bound=ExecutorStatistics | ExecutorBeat)
_Samples = Iterable[tuple[tuple[str, ...], float]]
"""Labels beside the component, and a number."""
_Table = Mapping[str, tuple[str, Callable[[_Snapshot], _Samples]]]


def _told(each: ExecutorStatistics | ExecutorBeat, value: float) -> _Samples:
    """Return a sample of its own for an executor."""
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
        lambda each: _told(each, each.queue.population),
    ),
    "receive_queue_capacity_tuples": (
        "Bound of an executor's queue. Storm: __receive-capacity.",
        lambda each: _told(each, each.queue.capacity),
    ),
    "receive_queue_fill_ratio": (
        "How full an executor's queue is, 0 to 1. Storm: __receive-pct_full.",
        lambda each: _told(each, each.queue.fill),
    ),
    "receive_queue_overflow_tuples": (
        "Tuples in an executor's queue over its bound. Storm: __receive-overflow.",
        lambda each: _told(each, each.queue.overflow),
    ),
    "receive_queue_arrivals_per_second": (
        "Tuples that arrive in an executor's queue, over ten seconds. Storm: __receive-arrival_rate_secs.",
        lambda each: _told(each, each.queue.arrival_rate),
    ),
    "receive_queue_sojourn_seconds": (
        "How long a tuple waits in an executor's queue. Storm: __receive-sojourn_time_ms.",
        lambda each: _told(each, each.queue.sojourn_seconds),
    ),
}
_ARRIVED: _Table[ExecutorStatistics] = {
    "receive_queue_arrived_tuples": (
        "Tuples that have arrived in an executor's queue.",
        lambda each: _told(each, each.queue.arrived),
    ),
}
_BEATS: _Table[ExecutorBeat] = {
    "executor_call_seconds": (
        "For how long an executor has been in one call of a spout or bolt, at the last heartbeat.",
        lambda each: _told(each, each.call_seconds),
    ),
    "executor_loop_age_seconds": (
        "How long before the last heartbeat an executor's loop had begun anew.",
        lambda each: _told(each, each.turned_seconds),
    ),
    "executor_stuck": (
        "1 while that call takes longer than nimbus.task.timeout.secs, else 0.",
        lambda each: _told(each, each.stuck),
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


class ExecutorCollector(Collector):
    """Turns snapshots of executors into metric families; for a registry.

    statistics, beats: return those of every executor of one topology in this process, from any thread.
    reported: returns what programs beside it have registered; by default nothing.
    """

    def __init__(
        self,
        statistics: Callable[[], Sequence[ExecutorStatistics]],
        beats: Callable[[], Sequence[ExecutorBeat]],
        reported: Callable[[], Reported] = Reported,
    ) -> None:
        self._statistics = statistics
        self._reported = reported
        self._beats = beats

    def collect(self) -> Iterator[Metric]:
        """Yield every family, all of them from one look at the executors."""
        statistics, reported = self._statistics(), self._reported()
        counter, gauge = CounterMetricFamily, GaugeMetricFamily
        yield from _families(counter, _BY_STREAM, statistics, "stream")
        yield from _families(counter, _BY_SOURCE, statistics, "source", "stream")
        yield from _latencies(statistics)
        yield from _families(counter, _BY_COMPONENT, statistics)
        yield from _families(counter, _BY_SENDER, statistics, "source")
        yield left_out_family(
            [*((each.component, each.left_out) for each in statistics), *reported.left_out.items()]
        )
        yield from _families(gauge, _PENDING, statistics)
        yield from _families(gauge, _QUEUES, statistics, "executor")
        yield from _families(counter, _ARRIVED, statistics, "executor")
        yield from _families(gauge, _BEATS, self._beats(), "executor")
        own = (RegisteredSample(each.component, *sample) for each in statistics for sample in each.metrics)
        yield from registered_families([*own, *reported.samples])


def _families(
    kind: type[CounterMetricFamily | GaugeMetricFamily],
    table: _Table[_Snapshot],
    snapshots: Sequence[_Snapshot],
    *labels: str,
) -> Iterator[Metric]:
    for name, (text, samples) in table.items():
        sums: defaultdict[tuple[str, ...], float] = defaultdict(float)
        for each in snapshots:
            for own, number in samples(each):
                sums[each.component, *own] += number
        family = kind(_PREFIX + name, text, labels=["component", *labels])
        for values, total in sorted(sums.items()):
            family.add_metric(values, total)
        yield family


def _latencies(statistics: Sequence[ExecutorStatistics]) -> Iterator[Metric]:
    for name, text, latency_of in _LATENCIES:
        summary = SummaryMetricFamily(_PREFIX + name, text, labels=["component"])
        for component in sorted({executor.component for executor in statistics}):
            timed = [latency_of(each.counts) for each in statistics if each.component == component]
            count, seconds = sum(each.count for each in timed), sum(each.seconds for each in timed)
            if count:  # a bolt completes nothing, and a spout executes nothing
                summary.add_metric([component], count, seconds)
        yield summary
