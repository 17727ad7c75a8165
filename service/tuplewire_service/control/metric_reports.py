"""Metrics that programs beside the worker report: kept for a time, bounded, and never added up.

Source: Storm's `WorkerMetricsProcessor`, to which a supervisor brings what its workers have measured.
"""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from tuplewire.connection.log_rate import LogRate
from tuplewire.errors import MalformedError, ResourceLimitError, StaleAssignmentError
from tuplewire.events import event_logger
from tuplewire.group import check_task
from tuplewire.wire import control_pb2 as pb
from tuplewire_service.admin.registered_families import RegisteredSample, Reported
from tuplewire_service.messaging.streamed.streamed_stream import check_id

logger = event_logger(__name__)

MOST_SERIES = 10_000
"""Of all programs together."""
MOST_BYTES = 4 << 20
SILENT_SECONDS = 30.0
"""For so long a report is told; programs report every few seconds."""
ENDED_SECONDS = 300.0
"""For so long the last one of a program is told that has ended."""
LEAST_SECONDS = 0.5
_OVERHEAD_BYTES = 1000
"""What a report costs beside its content."""
_NAME = re.compile(r"[a-zA-Z0-9_]{1,100}")
_KINDS = {
    pb.METRIC_KIND_COUNTER: "counter",
    pb.METRIC_KIND_GAUGE: "gauge",
    pb.METRIC_KIND_HISTOGRAM: "histogram",
}


@dataclass(frozen=True, slots=True)
class MetricReport:
    """All that one program tells. version: of the assignment by which it has its tasks. size: in bytes."""

    reporter: str
    version: int
    samples: Sequence[RegisteredSample]
    left_out: Mapping[str, int]
    ended: bool
    size: int

    @property
    def series(self) -> int:
        """How many series it makes."""
        return sum(each.series for each in self.samples)


def read_report(request: pb.ReportMetricsRequest) -> MetricReport:
    """Read a report; MalformedError or InvalidTaskError for what cannot be told as it says. In any thread."""
    check_id("reporter", request.reporter)
    for component in request.left_out:
        check_id("component", component)
    return MetricReport(
        request.reporter,
        request.assignment_version,
        [_sample(each) for each in request.metrics],
        dict(request.left_out),
        request.ended,
        _OVERHEAD_BYTES + request.ByteSize(),
    )


def _sample(metric: pb.RegisteredMetric) -> RegisteredSample:
    check_id("component", metric.component)
    if not _NAME.fullmatch(metric.name) or metric.name.endswith("_total"):
        raise MalformedError(
            "a metric's name has 1 to 100 letters, digits and `_`, and no `_total` at its end, "
            f"not {metric.name!r:.200}"
        )
    kind = _KINDS.get(metric.kind)
    if kind is None:
        raise MalformedError(f"the metric {metric.name!r} is of the kind {metric.kind}, which is none")
    bounds, counts = tuple(metric.bounds), tuple(metric.counts)
    if kind != "histogram":
        bounds, counts = (), ()
    elif (
        not all(map(math.isfinite, bounds))
        or any(after <= before for before, after in pairwise(bounds))
        or len(counts) != len(bounds) + 1
    ):
        raise MalformedError(
            f"the histogram {metric.name!r} has {len(counts)} counts for {len(bounds)} bounds; there is one "
            "more than bounds, and these grow"
        )
    task = check_task(metric.task)
    return RegisteredSample(metric.component, task, metric.name, kind, metric.value, bounds, counts)


@dataclass(frozen=True, slots=True)
class _Kept:
    report: MetricReport
    since: float
    until: float


class MetricReports:
    """The last report of each program, by one assignment. Not thread-safe.

    Guarantee: at most MOST_SERIES series and MOST_BYTES, whoever reports what. First come, first kept.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin without any. clock: in seconds."""
        self._clock = clock
        self._version = 0
        self._kept: dict[str, _Kept] = {}
        self._log_rate = LogRate()

    def take(self, report: MetricReport, in_force: int) -> None:
        """Keep a report in place of the program's last one, as far as there is room.

        in_force: the version of the assignment. Raises StaleAssignmentError for a report by another one, and
        ResourceLimitError for one that comes too early, or is too large.
        """
        if report.version != in_force:
            raise StaleAssignmentError(
                f"the metrics are of tasks by assignment {report.version}, and {in_force} is in force"
            )
        now = self._clock()
        if report.version != self._version:
            self._kept.clear()
            self._version = report.version
        self._forget(now)
        before = self._kept.get(report.reporter)
        last = report.ended and before is not None and not before.report.ended
        if before is not None and now - before.since < LEAST_SECONDS and not last:
            raise ResourceLimitError(
                f"metrics come again after less than {LEAST_SECONDS:g} s: report every few seconds"
            )
        others = [kept.report for name, kept in self._kept.items() if name != report.reporter]
        size = sum(each.size for each in others)
        if size + report.size > MOST_BYTES:
            raise ResourceLimitError(
                f"the metrics are {report.size} bytes, and those of other programs at this worker {size}, of "
                f"{MOST_BYTES} in all: lower topology.user.metrics.series"
            )
        kept = self._fitting(report, MOST_SERIES - sum(each.series for each in others))
        stays = ENDED_SECONDS if report.ended and kept.samples else SILENT_SECONDS
        self._kept[report.reporter] = _Kept(kept, now, now + stays)

    def _fitting(self, report: MetricReport, room: int) -> MetricReport:
        """Return what there is room for; the rest is counted, and told of once in a while."""
        if report.series <= room:
            return report
        samples, left_out = [], Counter(report.left_out)
        for each in report.samples:
            if each.series <= room:
                room -= each.series
                samples.append(each)
            else:
                left_out[each.component] += 1
        if self._log_rate.due("left_out"):
            extra = {"reporter": report.reporter, "metrics": len(report.samples) - len(samples)}
            logger.warning("metrics.left_out", extra={**extra, "most_series": MOST_SERIES})
        return replace(report, samples=samples, left_out=left_out)

    def _forget(self, now: float) -> None:
        self._kept = {name: kept for name, kept in self._kept.items() if now < kept.until}

    def told(self) -> Reported:
        """Return what is to be told now."""
        self._forget(self._clock())
        left_out = Counter[str]()
        samples: list[RegisteredSample] = []
        for kept in self._kept.values():
            samples += kept.report.samples
            left_out.update(kept.report.left_out)
        return Reported(samples, left_out)
