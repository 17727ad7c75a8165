"""Reports of programs about the topologies they run, for the worker's status and metrics.

A program reports every second. A status contains its counts of one second ago, interpolated between the last
two reports. Readers with another interval therefore see steady growth, and can compute rates and shares. Used
by servicers.py and process/worker_runtime.py. Owns the last two reports of each program. Not thread-safe.
Source: Storm's `WorkerMetricsProcessor`, which receives the measurements of a supervisor's workers.
Design: docs/design/status.md.
"""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from tuplewire.errors import MalformedError, ResourceLimitError, StaleAssignmentError
from tuplewire.text.events import LogRateLimiter, event_logger
from tuplewire.wire import control_pb2 as pb
from tuplewire_service.messaging.server_stream import check_id
from tuplewire_service.metrics.families import exposed_names

logger = event_logger(__name__)

MAX_SERIES = 10_000
"""Maximum number of series of all programs."""
MAX_BYTES = 4 << 20
MAX_COMPONENT_BYTES = 1 << 20
"""Limit for all programs together: every status contains all components."""
REPORT_TIMEOUT_SECONDS = 10.0
"""Seconds without a report after which a program counts as disconnected."""
RETENTION_SECONDS = 300.0
"""Seconds that the metrics of a finished program remain visible."""
MIN_INTERVAL_SECONDS = 0.5
OMITTED = "tuplewire_omitted_metrics"
_OMITTED = "Metrics that spouts and bolts have registered, and that exceed a bound of series."
_MAX_COUNT = 1 << 53
"""Larger numbers are not exact in a float, and no count is that large."""
_MAX_LABELS = 10
_OVERHEAD_BYTES = 1000
"""Memory for a report in addition to its content."""
_NAME = re.compile(r"tuplewire_[a-zA-Z0-9_]{1,100}")
_LABEL = re.compile(r"[a-z][a-z_]{0,49}")
_Counts = pb.InputStatus | pb.ExecutorStatus
_INPUT_COUNTS = ("executed",)
_EXECUTOR_COUNTS = ("emitted", "executed", "failed", "errors", "busy_seconds", "sending_seconds")


def check_report(report: pb.ReportProgramRequest, reserved: frozenset[str] = frozenset()) -> None:
    """Raise MalformedError for an invalid report. `reserved` are the names of the worker's own metrics."""
    check_id("program", report.program)
    for component in report.components:
        counts = [each.executed for each in component.inputs]
        counts += [getattr(each, name) for each in component.executors for name in _EXECUTOR_COUNTS]
        if not all(0 <= each <= _MAX_COUNT for each in counts):
            raise MalformedError(f"component {component.component[:100]!r} has a count over {_MAX_COUNT}")
    for family in report.metrics:
        _check_family(family, reserved)


def _check_family(family: pb.MetricFamily, reserved: frozenset[str]) -> None:
    name, labels = family.name, list(family.label_names)
    if not _NAME.fullmatch(name) or name.endswith("_total"):
        raise MalformedError(
            "a metric's name is `tuplewire_` and 1 to 100 letters, digits and `_`, without `_total` at the "
            f"end, not {name!r:.200}"
        )
    if family.kind not in pb.MetricKind.values() or family.kind == pb.METRIC_KIND_UNSPECIFIED:
        raise MalformedError(f"the metric {name!r} is of the kind {family.kind}, which does not exist")
    if not reserved.isdisjoint(exposed_names(family)):
        raise MalformedError(f"the worker has a metric {name!r} of its own: choose another name")
    if (
        len(set(labels)) != len(labels)
        or len(labels) > _MAX_LABELS
        or not all(map(_LABEL.fullmatch, labels))
        or {"le", "quantile"}.intersection(labels)
    ):
        raise MalformedError(f"the metric {name!r} cannot have the labels {labels!r:.200}")
    for sample in family.samples:
        _check_sample(family, sample)


def _check_sample(family: pb.MetricFamily, sample: pb.MetricSample) -> None:
    if len(sample.label_values) != len(family.label_names):
        raise MalformedError(
            f"a sample of {family.name!r} has {len(sample.label_values)} labels, and its family "
            f"{len(family.label_names)}"
        )
    for name, value in zip(family.label_names, sample.label_values, strict=True):
        if value or name != "source":  # messages from outside the topology have no source
            check_id(name, value)
    bounds, expected_counts = sample.bounds, 0
    if family.kind == pb.METRIC_KIND_HISTOGRAM:
        expected_counts = len(bounds) + 1
        if not all(map(math.isfinite, bounds)) or any(after <= before for before, after in pairwise(bounds)):
            raise MalformedError(f"the bounds of the histogram {family.name!r} are not finite or do not grow")
    elif family.kind == pb.METRIC_KIND_SUMMARY:
        expected_counts = 1
    if len(sample.counts) != expected_counts or (bounds and expected_counts < 2):
        raise MalformedError(
            f"a sample of {family.name!r} has {len(sample.counts)} counts for {len(bounds)} bounds: "
            "a histogram has one more than bounds, a summary one and no bounds, others none"
        )


@dataclass(slots=True)
class _Reports:
    """The last two reports of a program. Times are in seconds of the clock."""

    report: pb.ReportProgramRequest
    reported_at: float
    expires_at: float
    previous_report: pb.ReportProgramRequest
    previous_reported_at: float
    size_bytes: int
    component_bytes: int
    series: int = 0

    def components(self, now: float) -> Iterator[pb.ComponentStatus]:
        """Yield the components as of one period before; empty after the end."""
        if self.report.ended:
            return
        took = self.reported_at - self.previous_reported_at
        share = min(1.0, (now - self.reported_at) / took) if took > 0 else 1.0
        then = {(each.component, each.first_task): each for each in self.previous_report.components}
        for each in self.report.components:
            yield _between(then.get((each.component, each.first_task)), each, share)


class ProgramReports:
    """The last reports of each program, for one assignment. Not thread-safe.

    Guarantee: at most MAX_SERIES series and MAX_BYTES for any reports. Earlier programs have priority.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start empty. `clock` returns seconds."""
        self._clock = clock
        self._version = 0
        self._programs: dict[tuple[str, str], _Reports] = {}
        self._log_rate = LogRateLimiter()

    def store(self, owner: str, report: pb.ReportProgramRequest, current_version: int) -> None:
        """Store a checked report in place of the program's last one, within the limits.

        `owner` is the program's identity, and `current_version` that of the assignment. Raises
        StaleAssignmentError for another version, and ResourceLimitError if it is too early or too large.
        """
        if (version := report.assignment_version) != current_version:
            raise StaleAssignmentError(
                f"the report is for assignment {version}, and the current one is {current_version}"
            )
        now = self._clock()
        if current_version != self._version:
            self._programs.clear()
            self._version = current_version
        self._remove_expired(now)
        key = owner, report.program
        before = self._programs.get(key)
        is_final = report.ended and before is not None and not before.report.ended
        # The final report may follow the one before it immediately.
        if before is not None and now - before.reported_at < MIN_INTERVAL_SECONDS and not is_final:
            raise ResourceLimitError(
                f"a program reports again after less than {MIN_INTERVAL_SECONDS:g} s: report once a second"
            )
        others = [each for name, each in self._programs.items() if name != key]
        size, component_bytes = self._check_space(report, others)
        expires_at = now + (RETENTION_SECONDS if report.ended and report.metrics else REPORT_TIMEOUT_SECONDS)
        then, then_at = (report, now) if before is None else (before.report, before.reported_at)
        program = _Reports(report, now, expires_at, then, then_at, size, component_bytes)
        self._trim_samples(program, MAX_SERIES - sum(each.series for each in others))
        self._programs[key] = program

    def _check_space(self, report: pb.ReportProgramRequest, others: Collection[_Reports]) -> tuple[int, int]:
        """Return the size of a report and of its components, in bytes. Raises ResourceLimitError."""
        size = report.ByteSize() + _OVERHEAD_BYTES
        used = sum(each.size_bytes for each in others)
        if used + size > MAX_BYTES:
            raise ResourceLimitError(
                f"the report has {size} bytes; the other programs use {used} of {MAX_BYTES} bytes: "
                "lower topology.user.metrics.series"
            )
        component_bytes = sum(each.ByteSize() for each in report.components)
        if component_bytes + sum(each.component_bytes for each in others) > MAX_COMPONENT_BYTES:
            raise ResourceLimitError(
                f"the programs of this worker report more than {MAX_COMPONENT_BYTES} bytes of components: "
                "run fewer executors with one worker"
            )
        return size, component_bytes

    def _trim_samples(self, program: _Reports, max_series: int) -> None:
        """Remove the samples that exceed the limit; count them, and log this at a limited rate."""
        metrics, omitted = program.report.metrics, Counter[str]()
        for family in metrics:
            kept = []
            for sample in family.samples:
                series = len(sample.counts) + 2 if sample.counts else 1  # two for the sum and the count
                if program.series + series <= max_series:
                    program.series += series
                    kept.append(sample)
                else:
                    labels = dict(zip(family.label_names, sample.label_values, strict=True))
                    omitted[labels.get("component", "")] += 1
            if len(kept) < len(family.samples):
                family.ClearField("samples")
                family.samples.extend(kept)
        if not omitted:
            return
        # The omission itself is visible as a metric.
        added = metrics.add(name=OMITTED, help=_OMITTED, kind=pb.METRIC_KIND_GAUGE, label_names=["component"])
        for component, count in omitted.items():
            added.samples.add(label_values=[component], value=count)
        if self._log_rate.count_event("omitted"):
            extra = {"program": program.report.program, "metrics": omitted.total()}
            logger.warning("metrics.omitted", extra={**extra, "max_series": MAX_SERIES})

    def add_to(self, status: pb.GetStatusResponse) -> None:
        """Add the components to a status; counts of several programs are summed."""
        now = self._clock()
        self._remove_expired(now)
        added = {(each.component, each.first_task): each for each in status.components}
        for program in self._programs.values():
            for each in program.components(now):
                at = each.component, each.first_task
                if at in added:
                    _add(added[at], each)
                else:
                    status.components.append(each)
                    added[at] = status.components[-1]

    def metrics(self) -> list[pb.MetricFamily]:
        """Return the current metric families; the caller must not change them."""
        self._remove_expired(self._clock())
        return [family for program in self._programs.values() for family in program.report.metrics]

    def _remove_expired(self, now: float) -> None:
        self._programs = {key: each for key, each in self._programs.items() if now < each.expires_at}


def _between(then: pb.ComponentStatus | None, now: pb.ComponentStatus, share: float) -> pb.ComponentStatus:
    """Return a component interpolated between two reports. `share` is the elapsed part of the interval."""
    shown = pb.ComponentStatus()
    shown.CopyFrom(now)
    if then is not None:
        inputs = {(each.component, each.stream): each for each in then.inputs}
        for source in shown.inputs:
            _interpolate(inputs.get((source.component, source.stream)), source, _INPUT_COUNTS, share)
        executors = {(each.first_task, each.task_count): each for each in then.executors}
        for each in shown.executors:
            _interpolate(executors.get((each.first_task, each.task_count)), each, _EXECUTOR_COUNTS, share)
    return shown


def _interpolate(then: _Counts | None, now: _Counts, names: Iterable[str], share: float) -> None:
    """Interpolate counts between two reports; counts that have fallen were restarted."""
    for name in names if then is not None else ():
        last, increase = getattr(then, name), getattr(now, name) - getattr(then, name)
        if increase > 0:
            setattr(now, name, type(last)(last + increase * share))


def _add(component: pb.ComponentStatus, other: pb.ComponentStatus) -> None:
    """Add another program's executors of a component, and their executed counts."""
    component.executors.extend(other.executors)
    counts = {(each.component, each.stream): each for each in component.inputs}
    for each in other.inputs:
        if (found := counts.get((each.component, each.stream))) is not None:
            found.executed += each.executed
