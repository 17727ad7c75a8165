"""Metric families of a worker, made of plain values."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.utils import floatToGoString

from tuplewire.session.durations import BOUNDS, Durations

_PREFIX = "tuplewire_"
_BUCKETS = [*map(floatToGoString, BOUNDS), "+Inf"]


def counter(name: str, help_text: str, value: float) -> Metric:
    """Return a counter without labels."""
    return CounterMetricFamily(_PREFIX + name, help_text, value=value)


def gauge(name: str, help_text: str, value: float) -> Metric:
    """Return a gauge without labels."""
    return GaugeMetricFamily(_PREFIX + name, help_text, value=value)


def info(name: str, help_text: str, labels: dict[str, str]) -> Metric:
    """Return a series that is always 1, for its labels."""
    return InfoMetricFamily(_PREFIX + name, help_text, labels)


def counters(name: str, help_text: str, label: str, values: Iterable[tuple[str, float]]) -> Metric:
    """Return a counter for each value of a label."""
    family = CounterMetricFamily(_PREFIX + name, help_text, labels=[label])
    for child, value in values:
        family.add_metric([child], value)
    return family


def gauges(name: str, help_text: str, label: str, values: Iterable[tuple[str, float]]) -> Metric:
    """Return a gauge for each value of a label."""
    family = GaugeMetricFamily(_PREFIX + name, help_text, labels=[label])
    for child, value in values:
        family.add_metric([child], value)
    return family


def histogram(name: str, help_text: str, durations: Durations) -> Metric:
    """Return a histogram in seconds."""
    buckets = zip(_BUCKETS, accumulate(durations.counts), strict=True)
    return HistogramMetricFamily(
        _PREFIX + name, help_text, buckets=list(buckets), sum_value=durations.seconds
    )
