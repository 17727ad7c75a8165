"""Prometheus metrics of executors, read from snapshots at each scrape. Source: Storm's built-in metrics.

Nothing is paid for them between scrapes. What tasks do is added up by component and stream;
queues and threads are told by executor. So there are as many series as a topology has of these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tuplewire.topology.running.heartbeat import ExecutorBeat
from tuplewire.topology.running.statistics import Counts, ExecutorStatistics, Latency

_PREFIX = "tuplewire_"
_SOURCED = ("component", "source", "stream")

_OWN_STREAMS: Sequence[tuple[str, str, Callable[[Counts], Iterable[tuple[str, int]]]]] = [
    (
        "emitted_tuples",
        "Tuples that a component emitted, by its stream. Storm: __emit-count.",
        lambda counts: counts.emitted_by.items(),
    ),
    (
        "transferred_tuples",
        "Copies of what a component emitted, one for each task that gets one. Storm: __transfer-count.",
        lambda counts: counts.transferred_by.items(),
    ),
]

_SOURCE_STREAMS: Sequence[tuple[str, str, Callable[[Counts], Iterable[tuple[tuple[str, str], int]]]]] = [
    (
        "executed_tuples",
        "Tuples that a component executed, by who emitted them. Storm: __execute-count.",
        lambda counts: counts.executed_by.items(),
    ),
    (
        "acked_tuples",
        "Tuples that a bolt acked, or that a spout was told are processed. Storm: __ack-count.",
        lambda counts: counts.acked_by.items(),
    ),
    (
        "failed_tuples",
        "Tuples that a bolt failed, or that a spout was told have failed. Storm: __fail-count.",
        lambda counts: counts.failed_by.items(),
    ),
]

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

_TOTALS: Sequence[tuple[str, str, Callable[[Counts], float]]] = [
    ("task_errors", "Errors that tasks raised or reported.", lambda counts: counts.errors),
    (
        "sending_seconds",
        "Time until what was emitted had found room. Storm, of spouts: __skipped-backpressure-ms.",
        lambda counts: counts.sending_seconds,
    ),
]

_QUEUE_GAUGES: Sequence[tuple[str, str, Callable[[ExecutorStatistics], float]]] = [
    (
        "receive_queue_tuples",
        "Tuples in an executor's queue. Storm: __receive-population.",
        lambda executor: executor.queue.population,
    ),
    (
        "receive_queue_capacity_tuples",
        "Bound of an executor's queue. Storm: __receive-capacity.",
        lambda executor: executor.queue.capacity,
    ),
    (
        "receive_queue_fill_ratio",
        "How full an executor's queue is, 0 to 1. Storm: __receive-pct_full.",
        lambda executor: executor.queue.fill,
    ),
    (
        "receive_queue_overflow_tuples",
        "Tuples in an executor's queue over its bound. Storm: __receive-overflow.",
        lambda executor: executor.queue.overflow,
    ),
    (
        "receive_queue_arrivals_per_second",
        "Tuples that arrive in an executor's queue, over ten seconds. Storm: __receive-arrival_rate_secs.",
        lambda executor: executor.queue.arrival_rate,
    ),
    (
        "receive_queue_sojourn_seconds",
        "How long a tuple waits in an executor's queue. Storm: __receive-sojourn_time_ms.",
        lambda executor: executor.queue.sojourn_seconds,
    ),
]

_BEAT_GAUGES: Sequence[tuple[str, str, Callable[[ExecutorBeat], float]]] = [
    (
        "executor_call_seconds",
        "For how long an executor has been in one call of a spout or bolt, at the last heartbeat.",
        lambda beat: beat.call_seconds,
    ),
    (
        "executor_loop_age_seconds",
        "How long before the last heartbeat an executor's loop had begun anew.",
        lambda beat: beat.turned_seconds,
    ),
    (
        "executor_stuck",
        "1 while that call takes longer than nimbus.task.timeout.secs, else 0.",
        lambda beat: beat.stuck,
    ),
]


class ExecutorCollector(Collector):
    """Turns snapshots of executors into metric families; for a registry.

    statistics, beats: return those of every executor of one topology in this process, from any thread.
    """

    def __init__(
        self,
        statistics: Callable[[], Sequence[ExecutorStatistics]],
        beats: Callable[[], Sequence[ExecutorBeat]],
    ) -> None:
        self._statistics = statistics
        self._beats = beats

    def collect(self) -> Iterator[Metric]:
        """Yield every family, all of them from one look at the executors."""
        statistics = self._statistics()
        yield from _counts(statistics)
        yield from _queues(statistics)
        for name, text, value in _BEAT_GAUGES:
            gauge = GaugeMetricFamily(_PREFIX + name, text, labels=["component", "executor"])
            for beat in self._beats():
                gauge.add_metric([beat.component, _name(beat.tasks)], float(value(beat)))
            yield gauge


def _counts(statistics: Sequence[ExecutorStatistics]) -> Iterator[Metric]:
    for name, text, own in _OWN_STREAMS:
        sums: Counter[tuple[str, ...]] = Counter()
        for executor in statistics:
            for stream, count in own(executor.counts):
                sums[executor.component, stream] += count
        yield _counter(name, text, ("component", "stream"), sums)
    for name, text, sourced in _SOURCE_STREAMS:
        sums = Counter()
        for executor in statistics:
            for (source, stream), count in sourced(executor.counts):
                sums[executor.component, source, stream] += count
        yield _counter(name, text, _SOURCED, sums)
    components = sorted({executor.component for executor in statistics})
    for name, text, latency_of in _LATENCIES:
        summary = SummaryMetricFamily(_PREFIX + name, text, labels=["component"])
        for component in components:
            timed = [latency_of(each.counts) for each in statistics if each.component == component]
            count, seconds = sum(each.count for each in timed), sum(each.seconds for each in timed)
            if count:  # a bolt completes nothing, and a spout executes nothing
                summary.add_metric([component], count, seconds)
        yield summary
    for name, text, total in _TOTALS:
        counter = CounterMetricFamily(_PREFIX + name, text, labels=["component"])
        for component in components:
            totals = (total(each.counts) for each in statistics if each.component == component)
            counter.add_metric([component], sum(totals))
        yield counter
    pending = GaugeMetricFamily(
        f"{_PREFIX}spout_pending_tuples", "Tuples of a spout that are on the way.", labels=["component"]
    )
    for component in components:
        on_the_way = (each.pending for each in statistics if each.component == component)
        pending.add_metric([component], sum(on_the_way))
    yield pending


def _counter(name: str, text: str, labels: Sequence[str], sums: Counter[tuple[str, ...]]) -> Metric:
    counter = CounterMetricFamily(_PREFIX + name, text, labels=labels)
    for values, count in sorted(sums.items()):
        counter.add_metric(values, count)
    return counter


def _queues(statistics: Iterable[ExecutorStatistics]) -> Iterator[Metric]:
    labels = ["component", "executor"]
    for name, text, value in _QUEUE_GAUGES:
        gauge = GaugeMetricFamily(_PREFIX + name, text, labels=labels)
        for executor in statistics:
            gauge.add_metric([executor.component, _name(executor.tasks)], value(executor))
        yield gauge
    arrived = CounterMetricFamily(
        f"{_PREFIX}receive_queue_arrived_tuples",
        "Tuples that have arrived in an executor's queue.",
        labels=labels,
    )
    for executor in statistics:
        arrived.add_metric([executor.component, _name(executor.tasks)], executor.queue.arrived)
    yield arrived


def _name(tasks: range) -> str:
    return f"{tasks[0]}-{tasks[-1]}"
