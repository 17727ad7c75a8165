"""Families of what spouts and bolts have registered: in this process, and in programs that report to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from tuplewire_service.admin.families import gauges

_OF_HISTOGRAMS = ("_bucket", "_sum", "_count")


class RegisteredSample(NamedTuple):
    """A metric of a task, as it is. Of a histogram, value is the sum, and counts has one for each bucket."""

    component: str
    task: int
    name: str
    kind: str
    value: float
    bounds: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()

    @property
    def series(self) -> int:
        """How many series it makes."""
        return len(self.bounds) + len(_OF_HISTOGRAMS) if self.kind == "histogram" else 1


class Reported(NamedTuple):
    """What programs have reported; left_out: by component, how many metrics are not told."""

    samples: Sequence[RegisteredSample] = ()
    left_out: Mapping[str, int] = {}


class ReportedCollector(Collector):
    """Tells what programs report to a worker without executors of its own; nothing where none does.

    read: returns it, from any thread; what it raises fails the scrape.
    """

    def __init__(self, read: Callable[[], Reported]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """Yield a family for each name."""
        reported = self._read()
        if reported.left_out or reported.samples:
            yield left_out_family(reported.left_out.items())
        yield from registered_families(reported.samples)


def left_out_family(counts: Iterable[tuple[str, int]]) -> Metric:
    """Return how many metrics are not told, by component."""
    sums = Counter[str]()
    for component, count in counts:
        sums[component] += count
    return gauges(
        "left_out_metrics",
        "Metrics that spouts and bolts have registered, and that are over a bound of series.",
        "component",
        sorted(sums.items()),
    )


def registered_families(samples: Iterable[RegisteredSample]) -> Iterator[Metric]:
    """Yield a family for each name, by component and task.

    Processes may mean different things by a name. The first one counts, and each series is told once.
    """
    kinds: dict[str, str] = {}
    found: dict[str, dict[tuple[str, int], RegisteredSample]] = {}
    for sample in samples:
        if kinds.setdefault(sample.name, sample.kind) == sample.kind:
            found.setdefault(sample.name, {}).setdefault((sample.component, sample.task), sample)
    histograms = [name for name, kind in kinds.items() if kind == "histogram"]
    parts = {name + end for name in histograms for end in _OF_HISTOGRAMS}
    for name, by_task in sorted(found.items()):
        if name in parts:
            continue
        family = _FAMILIES[kinds[name]](
            f"tuplewire_user_{name}", "Registered by a spout or bolt.", labels=["component", "task"]
        )
        for (component, task), sample in sorted(by_task.items()):
            labels = [component, str(task)]
            if isinstance(family, HistogramMetricFamily):
                bounds = [*map(floatToGoString, sample.bounds), "+Inf"]
                buckets = list(zip(bounds, accumulate(sample.counts), strict=True))
                family.add_metric(labels, buckets, sample.value)
            else:
                family.add_metric(labels, sample.value)
        yield family


_FAMILIES: Mapping[str, type[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}
