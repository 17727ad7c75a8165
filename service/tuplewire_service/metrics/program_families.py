"""Metrics of programs as Prometheus families: of the program in this process, and of programs that report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    SummaryMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from tuplewire.wire import control_pb2 as pb

_ENDS = {
    pb.METRIC_KIND_COUNTER: ("_total", "_created"),
    pb.METRIC_KIND_GAUGE: ("",),
    pb.METRIC_KIND_HISTOGRAM: ("_bucket", "_sum", "_count", "_created"),
    pb.METRIC_KIND_SUMMARY: ("", "_sum", "_count", "_created"),
}
_FAMILIES: Mapping[pb.MetricKind, Callable[..., Metric]] = {
    pb.METRIC_KIND_COUNTER: CounterMetricFamily,
    pb.METRIC_KIND_GAUGE: GaugeMetricFamily,
    pb.METRIC_KIND_HISTOGRAM: HistogramMetricFamily,
    pb.METRIC_KIND_SUMMARY: SummaryMetricFamily,
}


class ProgramCollector(Collector):
    """Exports the metrics that `read` returns, on any thread. An exception of `read` fails the scrape."""

    def __init__(self, read: Callable[[], Iterable[pb.MetricFamily]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """Yield a family for each name."""
        return families(self._read())


def exposed_names(family: pb.MetricFamily) -> list[str]:
    """Return all names that samples of a family can have in Prometheus's text."""
    return [family.name, *(family.name + end for end in _ENDS[family.kind])]


def families(reported: Iterable[pb.MetricFamily]) -> Iterator[Metric]:
    """Yield a Prometheus family for each name. Samples with the same labels are added up.

    If programs use a name for different metrics, the first one counts: Prometheus rejects a page on which a
    name has two types.
    """
    taken: dict[str, pb.MetricFamily] = {}
    found: dict[str, dict[tuple[str, ...], pb.MetricSample]] = {}
    for family in reported:
        first = taken.get(family.name)
        if first is None:
            names = exposed_names(family)
            if not taken.keys().isdisjoint(names):  # such as a counter `x` after a gauge `x_total`
                continue
            taken |= dict.fromkeys(names, family)
        elif (first.name, first.kind, first.labels) != (family.name, family.kind, family.labels):
            continue
        samples = found.setdefault(family.name, {})
        for sample in family.samples:
            labels = tuple(sample.labels)
            samples[labels] = _sum(samples[labels], sample) if labels in samples else sample
    for name, samples in sorted(found.items()):
        yield _family(taken[name], samples)


def _sum(one: pb.MetricSample, other: pb.MetricSample) -> pb.MetricSample:
    if one.bounds != other.bounds:  # histograms with different buckets have no sum
        return one
    counts = [a + b for a, b in zip(one.counts, other.counts, strict=True)]
    return pb.MetricSample(labels=one.labels, value=one.value + other.value, bounds=one.bounds, counts=counts)


def _family(first: pb.MetricFamily, samples: Mapping[tuple[str, ...], pb.MetricSample]) -> Metric:
    family = _FAMILIES[first.kind](first.name, first.help, labels=list(first.labels))
    for labels, sample in sorted(samples.items()):
        if isinstance(family, HistogramMetricFamily):
            bounds = [*map(floatToGoString, sample.bounds), "+Inf"]
            buckets = list(zip(bounds, accumulate(sample.counts), strict=True))
            family.add_metric(labels, buckets, sample.value)
        elif isinstance(family, SummaryMetricFamily):
            family.add_metric(labels, sample.counts[0], sample.value)
        else:
            family.add_metric(labels, sample.value)  # type: ignore[attr-defined]  # a counter or a gauge
    return family
