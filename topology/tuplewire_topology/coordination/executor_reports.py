"""Converts snapshots of executors to a worker's metrics and a part of its status, and reports them to it.

Used by clusters and PySpark tasks for their workers. Owns the thread of a ProgramReporter. Thread-safe. The
metrics are Storm's built-in metrics. Tuples are counted by component and stream, and the rest by executor, so
the topology limits the number of series. Design: docs/design/topologies.md.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import TuplewireError
from tuplewire.text.events import LogRateLimiter, event_logger
from tuplewire.wire import control_pb2 as pb
from tuplewire_topology.authoring.description import Topology
from tuplewire_topology.running.component_executors import BoltExecutor
from tuplewire_topology.running.executor import Executor
from tuplewire_topology.running.heartbeat import ExecutorHeartbeat
from tuplewire_topology.running.statistics import Counts, ExecutorStatistics, LatencySum

logger = event_logger(__name__)

REPORT_INTERVAL_SECONDS = 1.0
CALL_TIMEOUT_SECONDS = 2.0
_JOIN_SECONDS = 2 * CALL_TIMEOUT_SECONDS
"""The time for a report in progress, and for the last one."""
_FAILED_JOIN_SECONDS = 0.5
"""A shorter time after an error: a cancelled PySpark task has two seconds in total."""
_PREFIX = "tuplewire_"

_Table = Sequence[tuple[str, str, str, str]]
"""A metric's name, the attribute with its value, or with its values by label, Storm's name, and the help."""

_BY_STREAM: _Table = (
    ("emitted_tuples", "emitted_by", "emit-count", "Tuples that a component emitted, by its stream."),
    ("transferred_tuples", "transferred_by", "transfer-count", "Emitted tuples, once for each target task."),
)
_BY_SOURCE: _Table = (
    ("executed_tuples", "executed_by", "execute-count", "Tuples that a component executed, by source."),
    ("acked_tuples", "acked_by", "ack-count", "Tuples that a bolt acked, or processed tuples of a spout."),
    ("failed_tuples", "failed_by", "fail-count", "Tuples that a bolt failed, or failed tuples of a spout."),
)
_LATENCIES: _Table = (
    ("execute_latency_seconds", "execute", "execute-latency", "Time in execute(). Its rate is the capacity."),
    ("process_latency_seconds", "process", "process-latency", "Time from execute() to ack, once per column."),
    ("complete_latency_seconds", "complete", "complete-latency", "Time from a spout's emit to its ack()."),
)
_COUNTERS_BY_COMPONENT: _Table = (
    ("task_errors", "errors", "", "Errors that tasks raised or reported."),
    ("sending_seconds", "sending_seconds", "skipped-backpressure-ms", "Time to send, with waits for space."),
)
_BY_SENDER: _Table = (
    ("serialized_bytes", "received_bytes", "", "Payload bytes of tuples from other processes, by sender."),
)
_GAUGES_BY_COMPONENT: _Table = (
    ("omitted_metrics", "omitted_count", "", "Metrics of spouts and bolts that exceed the limit of series."),
    ("spout_pending_tuples", "pending_tuples", "", "Tuples of a spout in flight."),
)
_QUEUE_GAUGES: _Table = (
    ("receive_queue_tuples", "population", "receive-population", "Tuples now in an executor's queue."),
    ("receive_queue_capacity_tuples", "capacity", "receive-capacity", "Capacity of an executor's queue."),
    ("receive_queue_fill_ratio", "fill_ratio", "receive-pct_full", "Fill of an executor's queue, 0 to 1."),
    ("receive_queue_overflow_tuples", "overflow", "receive-overflow", "Tuples over the queue's capacity."),
    ("receive_queue_arrivals_per_second", "arrival_rate", "receive-arrival_rate_secs", "Rate over 10 s."),
    ("receive_queue_sojourn_seconds", "sojourn_seconds", "receive-sojourn_time_ms", "Wait in the queue."),
)
_QUEUE_COUNTERS: _Table = (
    ("receive_queue_arrived_tuples", "arrived", "", "Tuples that have arrived in an executor's queue."),
)
_HEARTBEAT_GAUGES: _Table = (
    ("executor_call_seconds", "call_seconds", "", "Time in one call of user code, at the last heartbeat."),
    ("executor_loop_age_seconds", "iteration_seconds", "", "Time since the loop turned, at the heartbeat."),
    ("executor_stuck", "stuck", "", "1 while a call takes longer than nimbus.task.timeout.secs, else 0."),
)


def metric_families(
    statistics: Sequence[ExecutorStatistics], beats: Sequence[ExecutorHeartbeat]
) -> list[pb.MetricFamily]:
    """Return Storm's built-in metrics, and the registered ones, of all executors here of one topology."""
    counter, gauge = pb.METRIC_KIND_COUNTER, pb.METRIC_KIND_GAUGE
    return [
        *_families(counter, _BY_STREAM, statistics, "counts", "stream"),
        *_families(counter, _BY_SOURCE, statistics, "counts", "source", "stream"),
        *_families(pb.METRIC_KIND_SUMMARY, _LATENCIES, statistics, "counts"),
        *_families(counter, _COUNTERS_BY_COMPONENT, statistics, "counts"),
        *_families(counter, _BY_SENDER, statistics, "", "source"),
        *_families(gauge, _GAUGES_BY_COMPONENT, statistics, ""),
        *_families(gauge, _QUEUE_GAUGES, statistics, "queue", "executor"),
        *_families(counter, _QUEUE_COUNTERS, statistics, "queue", "executor"),
        *_families(gauge, _HEARTBEAT_GAUGES, beats, "", "executor"),
        *_user_families(statistics),
    ]


def _families(
    kind: pb.MetricKind,
    table: _Table,
    snapshots: Iterable[ExecutorStatistics | ExecutorHeartbeat],
    part: str,
    *labels: str,
) -> Iterator[pb.MetricFamily]:
    """Yield the metrics of a table. `part` is the attribute of a snapshot to read from, or empty."""
    for name, attribute, storm, text in table:
        sums: defaultdict[tuple[str, ...], LatencySum] = defaultdict(LatencySum)
        for each in snapshots:
            executor = (f"{each.tasks[0]}-{each.tasks[-1]}",) if labels == ("executor",) else ()
            value = getattr(getattr(each, part) if part else each, attribute)
            for own, number in value.items() if isinstance(value, Mapping) else [(executor, value)]:
                total = sums[each.component, *([own] if isinstance(own, str) else own)]
                timed = number if isinstance(number, LatencySum) else LatencySum(0, number)
                total.count += timed.count
                total.seconds += timed.seconds
        doc = f"{text} Storm: __{storm}." if storm else text
        family = pb.MetricFamily(name=_PREFIX + name, help=doc, kind=kind, label_names=["component", *labels])
        for values in sorted(sums):
            total = sums[values]
            if kind != pb.METRIC_KIND_SUMMARY:
                family.samples.add(label_values=values, value=total.seconds)
            elif total.count:  # a bolt completes nothing, and a spout executes nothing
                family.samples.add(label_values=values, value=total.seconds, counts=[total.count])
        yield family


def _user_families(statistics: Sequence[ExecutorStatistics]) -> Iterable[pb.MetricFamily]:
    """Return registered metrics. Workers may use a name for two kinds, which gives two families."""
    families: dict[tuple[str, str], pb.MetricFamily] = {}
    for executor in statistics:
        for task, name, kind, value, bounds, counts in executor.metrics:
            if (family := families.get((name, kind))) is None:
                family = families[name, kind] = pb.MetricFamily(
                    name=f"{_PREFIX}user_{name}",
                    help="Registered by a spout or bolt.",
                    kind=f"METRIC_KIND_{kind.upper()}",
                    label_names=["component", "task"],
                )
            labels = [executor.component, str(task)]
            family.samples.add(label_values=labels, value=value, bounds=bounds, counts=counts)
    return families.values()


def component_statuses(
    topology: Topology, executors: Sequence[Executor[Any]], task_offset: int = 0
) -> list[pb.ComponentStatus]:
    """Return all components, with their executors here. `task_offset` is added to task ids."""
    statuses = []
    for name, component in topology.components.items():
        here = [(each, each.tally.live_totals(each.pulse)) for each in executors if each.component.id == name]
        tasks = topology.tasks_of(name)
        status = pb.ComponentStatus(
            component=name,
            kind=component.kind,
            first_task=task_offset + tasks[0],
            task_count=len(tasks),
            inputs=[
                pb.InputStatus(
                    component=source.component,
                    stream=source.stream,
                    grouping=source.grouping,
                    executed=sum(counts.executed_by[source.component, source.stream] for _, counts in here),
                )
                for source in component.inputs
            ],
            executors=[_executor_status(*each, task_offset) for each in here],
        )
        statuses.append(status)
    return statuses


def _executor_status(executor: Executor[Any], counts: Counts, task_offset: int) -> pb.ExecutorStatus:
    queue = executor.queue.statistics()
    left = queue.arrived - counts.executed  # with the rest of the column in progress
    return pb.ExecutorStatus(
        first_task=task_offset + executor.tasks[0],
        task_count=len(executor.tasks),
        emitted=counts.emitted,
        executed=counts.executed,
        failed=counts.failed,
        errors=counts.errors,
        busy_seconds=counts.execute.seconds,
        sending_seconds=counts.sending_seconds,
        queued_tuples=left if isinstance(executor, BoltExecutor) else queue.population,
        queue_capacity=queue.capacity,
        pending_tuples=executor.pending_tuples,
    )


class ProgramReporter:
    """Reports a PySpark task's executors to its local worker, for status, `top` and metrics.

    A PySpark task cannot be scraped: it has no port, and runs for one job. Reports each second, in its own
    thread, until the context manager exits. Source: Storm's workers, which report to their supervisor.

    The last report has the final numbers. After an error it has no metrics, which removes the earlier ones:
    Spark may run the stage again, and would count tuples twice. Failures are logged at most once a minute.

    The thread closes `control`, and calls `build_report`.
    """

    def __init__(self, control: ControlClient, build_report: Callable[[], pb.ReportProgramRequest]) -> None:
        self._control = control
        self._build_report = build_report
        self._has_reported = False
        self._exited_with_error = False
        self._stopping = threading.Event()
        self._log_rate = LogRateLimiter()
        self._thread = threading.Thread(target=self._main, name="tuplewire-topology-reporter", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._exited_with_error = kind is not None
        self._stopping.set()
        self._thread.join(_FAILED_JOIN_SECONDS if self._exited_with_error else _JOIN_SECONDS)

    def _main(self) -> None:
        with self._control:
            while not self._stopping.wait(REPORT_INTERVAL_SECONDS):
                self._report()
            self._report()

    def _report(self) -> None:
        report = self._build_report()
        report.ended = self._stopping.is_set()
        if self._exited_with_error:
            if not self._has_reported:
                return  # there are no earlier metrics to remove
            report.ClearField("metrics")
        self._has_reported = True
        try:
            self._control.report_program(report)
        except TuplewireError as error:
            if reports := self._log_rate.count_event("refused"):
                logger.warning("program.report_failed", extra={"failed": reports, "reason": str(error)})
