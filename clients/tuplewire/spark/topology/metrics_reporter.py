"""What a PySpark task's spouts and bolts have registered, told to the worker beside it.

Nobody can scrape a PySpark task: it has no port, and lives for one job. Source: Storm's workers, which bring
their metrics to the supervisor beside them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Self

from tuplewire.connection.control_client import ControlClient
from tuplewire.connection.log_rate import LogRate
from tuplewire.errors import TuplewireError
from tuplewire.events import event_logger
from tuplewire.topology.running.statistics import ExecutorStatistics
from tuplewire.topology.user_metrics import MetricKind
from tuplewire.wire import control_pb2

logger = event_logger(__name__)

PERIOD_SECONDS = 5.0
CALL_SECONDS = 2.0
_END_SECONDS = 2 * CALL_SECONDS
"""A report that is under way, and the last one."""
_HASTE_SECONDS = 0.5
"""A PySpark task that is cancelled has two seconds left in all."""
_KINDS = {
    MetricKind.COUNTER: control_pb2.METRIC_KIND_COUNTER,
    MetricKind.GAUGE: control_pb2.METRIC_KIND_GAUGE,
    MetricKind.HISTOGRAM: control_pb2.METRIC_KIND_HISTOGRAM,
}


class MetricsReporter:
    """Reports every few seconds, in a thread of its own, until the block ends.

    The last report says how far the tasks came. After an error it takes everything back: Spark may run the
    stage again, and what that counts would stand beside it. What goes wrong is logged, once a minute, and
    costs the topology nothing.

    control: to the worker; closed at the end. program: topology, worker, reporter and assignment, for all
    reports. statistics: returns a snapshot of each executor, from any thread.
    """

    def __init__(
        self,
        control: ControlClient,
        program: control_pb2.ReportMetricsRequest,
        statistics: Callable[[], Iterable[ExecutorStatistics]],
        period: float = PERIOD_SECONDS,
    ) -> None:
        self._control = control
        self._program = program
        self._statistics = statistics
        self._period = period
        self._told = False
        self._taken_back = False
        self._ended = threading.Event()
        self._log_rate = LogRate()
        self._thread = threading.Thread(target=self._main, name="tuplewire metrics", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._taken_back = kind is not None
        self._ended.set()
        self._thread.join(_HASTE_SECONDS if self._taken_back else _END_SECONDS)

    def _main(self) -> None:
        with self._control:
            while not self._ended.wait(self._period):
                self._report()
            self._report()

    def _report(self) -> None:
        report = control_pb2.ReportMetricsRequest()
        report.CopyFrom(self._program)
        report.ended = self._ended.is_set()
        if not self._taken_back:
            for each in self._statistics():
                _add(report, each)
        if not (self._told or report.metrics or report.left_out):
            return
        self._told = True
        try:
            self._control.report_metrics(report)
        except TuplewireError as error:
            if reports := self._log_rate.due("refused"):
                logger.warning("metrics.not_told", extra={"reports": reports, "reason": str(error)})


def _add(report: control_pb2.ReportMetricsRequest, executor: ExecutorStatistics) -> None:
    for task, name, kind, value, bounds, counts in executor.metrics:
        report.metrics.add(
            component=executor.component,
            task=task,
            name=name,
            kind=_KINDS[MetricKind(kind)],
            value=value,
            bounds=bounds,
            counts=counts,
        )
    if executor.left_out:
        report.left_out[executor.component] += executor.left_out
