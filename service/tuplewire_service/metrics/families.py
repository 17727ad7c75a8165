"""Metric families of a worker and of programs. prometheus-client writes their text.

Used by the collectors of the process. Owns no state. Thread-safe. Design: docs/design/status.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    SummaryMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

from tuplewire.session.durations import BOUNDS
from tuplewire.wire import control_pb2 as pb

_PREFIX = "tuplewire_"
_BUCKETS = [*map(floatToGoString, BOUNDS), "+Inf"]


def counter(name: str, help_text: str, value: float) -> Metric:
    """Return a counter without labels."""
    return CounterMetricFamily(_PREFIX + name, help_text, value=value)


def gauge(name: str, help_text: str, value: float) -> Metric:
    """Return a gauge without labels."""
    return GaugeMetricFamily(_PREFIX + name, help_text, value=value)


def info(name: str, help_text: str, labels: dict[str, str]) -> Metric:
    """Return a series with the value 1; its labels are the information."""
    return InfoMetricFamily(_PREFIX + name, help_text, labels)


def counter_by(name: str, help_text: str, label: str, values: Iterable[tuple[str, float]]) -> Metric:
    """Return a family with a counter for each value of a label."""
    return _labelled(CounterMetricFamily(_PREFIX + name, help_text, labels=[label]), values)


def gauge_by(name: str, help_text: str, label: str, values: Iterable[tuple[str, float]]) -> Metric:
    """Return a family with a gauge for each value of a label."""
    return _labelled(GaugeMetricFamily(_PREFIX + name, help_text, labels=[label]), values)


def _labelled(family: CounterMetricFamily | GaugeMetricFamily, values: Iterable[tuple[str, float]]) -> Metric:
    for child, value in values:
        family.add_metric([child], value)
    return family


def histogram(name: str, help_text: str, latency: pb.Latency) -> Metric:
    """Return a histogram in seconds. A bucket with a traced message has an exemplar."""
    buckets: list[tuple[str, float] | tuple[str, float, Exemplar]] = list(
        zip(_BUCKETS, accumulate(latency.counts), strict=True)
    )
    for bucket, found in latency.exemplars.items():
        ids = {"trace_id": found.trace_id, "span_id": found.span_id}
        buckets[bucket] = *buckets[bucket][:2], Exemplar(ids, found.duration_seconds, found.unix_seconds)
    return HistogramMetricFamily(_PREFIX + name, help_text, buckets=buckets, sum_value=latency.sum_seconds)


_KINDS: Mapping[pb.MetricKind, tuple[Callable[..., Metric], Sequence[str]]] = {
    pb.METRIC_KIND_COUNTER: (CounterMetricFamily, ("_total", "_created")),
    pb.METRIC_KIND_GAUGE: (GaugeMetricFamily, ("",)),
    pb.METRIC_KIND_HISTOGRAM: (HistogramMetricFamily, ("_bucket", "_sum", "_count", "_created")),
    pb.METRIC_KIND_SUMMARY: (SummaryMetricFamily, ("", "_sum", "_count", "_created")),
}
"""The class of each kind, and the ends of its samples' names."""


class ProgramCollector(Collector):
    """Exports the metrics that `read` returns, on any thread. An exception of `read` fails the scrape."""

    def __init__(self, read: Callable[[], Iterable[pb.MetricFamily]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """Yield a family for each name."""
        return families(self._read())


def exposed_names(family: pb.MetricFamily) -> list[str]:
    """Return all names that samples of a family can have in Prometheus's text."""
    return [family.name, *(family.name + end for end in _KINDS[family.kind][1])]


def families(reported: Iterable[pb.MetricFamily]) -> Iterator[Metric]:
    """Yield a Prometheus family for each name. Samples with the same labels are added up.

    If programs use a name for different metrics, the first one counts: for Prometheus, a name has one type.
    """
    family_by_name: dict[str, pb.MetricFamily] = {}
    samples_by_name: dict[str, dict[tuple[str, ...], pb.MetricSample]] = {}
    for family in reported:
        first = family_by_name.get(family.name)
        if first is None:
            names = exposed_names(family)
            if not family_by_name.keys().isdisjoint(names):  # such as a counter `x` after a gauge `x_total`
                continue
            family_by_name |= dict.fromkeys(names, family)
        elif (first.name, first.kind, first.label_names) != (family.name, family.kind, family.label_names):
            continue
        samples = samples_by_name.setdefault(family.name, {})
        for sample in family.samples:
            labels = tuple(sample.label_values)
            samples[labels] = _sum(samples[labels], sample) if labels in samples else sample
    for name, samples in sorted(samples_by_name.items()):
        yield _family(family_by_name[name], samples)


def _sum(one: pb.MetricSample, other: pb.MetricSample) -> pb.MetricSample:
    if one.bounds != other.bounds:  # histograms with different buckets have no sum
        return one
    counts, value = [a + b for a, b in zip(one.counts, other.counts, strict=True)], one.value + other.value
    return pb.MetricSample(label_values=one.label_values, value=value, bounds=one.bounds, counts=counts)


def _family(declared: pb.MetricFamily, samples: Mapping[tuple[str, ...], pb.MetricSample]) -> Metric:
    family_class, _ = _KINDS[declared.kind]
    family = family_class(declared.name, declared.help, labels=list(declared.label_names))
    for labels, sample in sorted(samples.items()):
        if isinstance(family, HistogramMetricFamily):
            bounds = [*map(floatToGoString, sample.bounds), "+Inf"]
            family.add_metric(labels, list(zip(bounds, accumulate(sample.counts), strict=True)), sample.value)
        elif isinstance(family, SummaryMetricFamily):
            family.add_metric(labels, sample.counts[0], sample.value)
        else:
            family.add_metric(labels, sample.value)  # type: ignore[attr-defined]  # a counter or a gauge
    return family
