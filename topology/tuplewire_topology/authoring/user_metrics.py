"""Metrics that spouts and bolts register, exported with the worker's metrics.

Used by TopologyContext, and by executors for their statistics. Owns the metrics of one worker. Thread-safe.
Source: Storm's `registerCounter`, `registerGauge` and `registerHistogram`. Kinds are Prometheus', not
Dropwizard's as in Storm. Design: docs/design/topologies.md.
"""

from __future__ import annotations

import math
import re
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import ClassVar, NamedTuple, TypeVar

from tuplewire.errors import TopologyError
from tuplewire.text.events import LogRateLimiter, event_logger

logger = event_logger(__name__)

DEFAULT_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Default upper bounds of a histogram, for values in seconds."""
MAX_SERIES = 1000
_MAX_OMITTED = 10_000
"""The maximum number of omitted metrics that are counted for each task."""
_MAX_LENGTH = 100
_HISTOGRAM_SUFFIXES = ("_bucket", "_sum", "_count")


class MetricKind(StrEnum):
    """The kinds of metric."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class MetricSnapshot(NamedTuple):
    """A snapshot of a task's metric. A histogram has its sum as `value`, and one count per bucket."""

    task: int
    name: str
    kind: str
    value: float
    bounds: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()


class CounterMetric:
    """A counter. Call only from the task's thread. Source: Dropwizard's `Counter` and `Meter`."""

    kind = MetricKind.COUNTER
    n_series = 1

    def __init__(self) -> None:
        self.value: float = 0

    def inc(self, by: float = 1) -> None:
        """Add to the counter. Raises ValueError for a negative number."""
        if by < 0:
            raise ValueError(f"a counter only grows, and {by!r} is less than 0: use a gauge")
        self.value += by


class HistogramMetric:
    """A histogram. Call only from the task's thread. Source: Dropwizard's `Histogram`."""

    kind = MetricKind.HISTOGRAM

    def __init__(self, buckets: Iterable[float]) -> None:
        """Create a histogram. Raises TopologyError unless the upper bounds are finite and increasing."""
        self.bounds = bounds = tuple(map(float, buckets))
        growing = all(before < after for before, after in pairwise(bounds))
        if not (bounds and growing and all(map(math.isfinite, bounds))):
            raise TopologyError(f"the buckets of a histogram are finite bounds that grow, not {bounds!r}")
        self.counts = [0] * (len(bounds) + 1)
        self.sum: float = 0.0
        self.n_series = len(bounds) + len(_HISTOGRAM_SUFFIXES)

    def update(self, value: float) -> None:
        """Count a value."""
        self.sum += value
        self.counts[bisect_left(self.bounds, value)] += 1


@dataclass(frozen=True, slots=True)
class Gauge:
    """A gauge. `read` returns its value, and must be thread-safe."""

    kind: ClassVar = MetricKind.GAUGE
    n_series: ClassVar = 1
    read: Callable[[], float]

    def __post_init__(self) -> None:
        if not callable(self.read):
            raise TopologyError(f"a gauge needs a function that returns its value, not {self.read!r}")


_Metric = TypeVar("_Metric", CounterMetric, HistogramMetric, Gauge)


class UserMetrics:
    """The metrics of one worker. Thread-safe. Metrics over the limit of series are only counted."""

    def __init__(self, max_series: int = MAX_SERIES) -> None:
        self._max_series = max_series
        self._lock = threading.Lock()
        self._n_series = 0
        self._exported: dict[str, tuple[MetricKind, str]] = {}
        """The kind and name of the metric that each name in /metrics belongs to."""
        self._metrics_by_task: dict[int, dict[str, CounterMetric | HistogramMetric | Gauge]] = {}
        self._omitted_names: dict[int, set[str]] = {}
        self._log_rate = LogRateLimiter()

    def register(self, task: int, name: str, metric: _Metric) -> _Metric:
        """Return the task's known metric, or else add and return this one; a gauge replaces the known one.

        Raises TopologyError for an invalid name, or one of another kind.
        """
        exported_name = _exported_name(name)
        with self._lock:
            exported = self._check(name, exported_name, metric.kind)
            task_metrics = self._metrics_by_task.setdefault(task, {})
            known = task_metrics.get(exported_name)
            if isinstance(known, type(metric)) and not isinstance(known, Gauge):
                return known
            # A replaced gauge adds no series. An omitted metric is not stored, but its task can use it.
            omitted = known is None and self._n_series + metric.n_series > self._max_series
            if omitted:
                names = self._omitted_names.setdefault(task, set())
                if len(names) < _MAX_OMITTED:
                    names.add(exported_name)
            else:
                if known is None:
                    self._n_series += metric.n_series
                    self._exported |= exported
                task_metrics[exported_name] = metric
        if omitted and self._log_rate.count_event("omitted"):
            extra = {"task": task, "metric": name, "max_series": self._max_series}
            logger.warning("user_metric.omitted", extra={**extra, "setting": "topology.user.metrics.series"})
        return metric

    def _check(self, name: str, exported_name: str, kind: MetricKind) -> Mapping[str, tuple[MetricKind, str]]:
        """Return a metric's names in /metrics. Raises TopologyError if another metric has one of them."""
        ends = ["", *_HISTOGRAM_SUFFIXES] if kind is MetricKind.HISTOGRAM else [""]
        exported = dict.fromkeys([exported_name + end for end in ends], (kind, exported_name))
        for each, new_owner in exported.items():
            other, taken = self._exported.get(each, new_owner)
            if (other, taken) != new_owner:
                raise TopologyError(
                    f"the {kind} {name!r} and the {other} {taken!r} would have the same name in /metrics: "
                    "choose another"
                )
        return exported

    def remove_tasks(self, tasks: Iterable[int]) -> None:
        """Remove the metrics of tasks that have left the worker."""
        with self._lock:
            for task in tasks:
                self._n_series -= sum(each.n_series for each in self._metrics_by_task.pop(task, {}).values())
                self._omitted_names.pop(task, None)

    def count_omitted(self, tasks: Iterable[int]) -> int:
        """Return the number of the tasks' metrics that are not exported."""
        with self._lock:
            return sum(len(self._omitted_names.get(task, ())) for task in tasks)

    def collect(self, tasks: Iterable[int]) -> Sequence[MetricSnapshot]:
        """Return snapshots of the tasks' metrics. A gauge that raises is omitted, and logged."""
        with self._lock:
            registered = [(task, dict(self._metrics_by_task.get(task, {}))) for task in tasks]
        found = []
        for task, metrics in registered:
            for name, each in metrics.items():
                kind = each.kind.value
                if isinstance(each, CounterMetric):
                    found.append(MetricSnapshot(task, name, kind, each.value))
                elif isinstance(each, HistogramMetric):
                    found.append(MetricSnapshot(task, name, kind, each.sum, each.bounds, tuple(each.counts)))
                elif (value := self._read(task, name, each.read)) is not None:
                    found.append(MetricSnapshot(task, name, kind, value))
        return found

    def _read(self, task: int, name: str, read: Callable[[], float]) -> float | None:
        try:
            return float(read())
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                raise  # Ctrl+C is for the program, not an error of the gauge
            if self._log_rate.count_event((task, name)):
                extra = {"task": task, "metric": name, "reason": f"{type(error).__name__}: {error}"}
                logger.warning("gauge.failed", extra=extra)
            return None


def _exported_name(name: str) -> str:
    """Return the exported form of a name. Raises TopologyError for an invalid name."""
    if not isinstance(name, str) or not 0 < len(name) <= _MAX_LENGTH:
        raise TopologyError(f"a metric's name is text of 1 to {_MAX_LENGTH} characters, not {name!r:.200}")
    exported_name = re.sub(r"[^a-zA-Z0-9_]", "_", name).removesuffix("_total")  # exporters add this suffix
    if not exported_name.strip("_"):
        raise TopologyError(f"a metric's name needs a letter or a digit, unlike {name!r}")
    return exported_name
