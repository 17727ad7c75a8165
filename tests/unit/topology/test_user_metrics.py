"""Metrics that spouts and bolts register: names, kinds and limit."""

from __future__ import annotations

import logging
import math

import pytest
from helpers.executors import Sink, pipeline

from tuplewire.errors import TopologyError
from tuplewire_topology import TopologyContext
from tuplewire_topology.authoring.user_metrics import (
    CounterMetric,
    Gauge,
    HistogramMetric,
    MetricSnapshot,
    UserMetrics,
)
from tuplewire_topology.clusters.capture import FeederSpout


def test_what_was_counted_is_told_by_task() -> None:
    """A metric name is a separate series for each task."""
    metrics = UserMetrics()
    metrics.register(1, "orders", CounterMetric()).inc()
    metrics.register(1, "orders", CounterMetric()).inc(2.5)
    metrics.register(2, "orders", CounterMetric()).inc()
    sizes = metrics.register(1, "sizes", HistogramMetric((1, 10)))
    for value in (0, 1, 2, 10, 11):
        sizes.update(value)
    value = 5
    metrics.register(2, "left", Gauge(lambda: value))
    value = 7
    assert metrics.collect([1, 2, 3]) == [
        MetricSnapshot(1, "orders", "counter", 3.5),
        MetricSnapshot(1, "sizes", "histogram", 24, (1.0, 10.0), (2, 2, 1)),
        MetricSnapshot(2, "orders", "counter", 1),
        MetricSnapshot(2, "left", "gauge", 7),
    ]


def test_a_gauge_is_replaced_and_a_task_forgotten() -> None:
    """A reopened task replaces its gauge, and a removed task reports nothing."""
    metrics = UserMetrics(1)
    metrics.register(1, "left", Gauge(lambda: 1))
    metrics.register(1, "left", Gauge(lambda: 2))
    assert metrics.collect([1]) == [MetricSnapshot(1, "left", "gauge", 2)]
    metrics.remove_tasks([1])
    assert metrics.collect([1]) == []
    metrics.register(2, "left", Gauge(lambda: 3))  # there is space again
    assert metrics.collect([2]) == [MetricSnapshot(2, "left", "gauge", 3)]


def test_series_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    """The first series are reported; later ones still work, are counted, and are logged once."""
    metrics = UserMetrics(10)
    metrics.register(1, "h", HistogramMetric((1, 2, 3, 4, 5))).update(1)  # eight series
    for number in range(100):
        metrics.register(1, f"n{number}", CounterMetric()).inc()
    assert [each.name for each in metrics.collect([1])] == ["h", "n0", "n1"]
    assert metrics.count_omitted([1]) == 98
    assert metrics.count_omitted([2]) == 0
    (line,) = caplog.messages
    assert line.startswith("user_metric.omitted task=1 metric=n2 max_series=10")
    metrics.register(1, "n99", CounterMetric()).inc()
    assert metrics.count_omitted([1]) == 98
    metrics.remove_tasks([1])
    assert metrics.count_omitted([1]) == 0


@pytest.mark.parametrize("name", ["", "...", "x" * 101, 5, None])
def test_a_name_is_text(name: object) -> None:
    """An invalid name is refused at registration."""
    with pytest.raises(TopologyError, match="a metric's name"):
        UserMetrics().register(1, name, CounterMetric())  # type: ignore[arg-type]


def test_a_name_has_one_meaning() -> None:
    """Names that collide in /metrics are refused unless they are the same kind."""
    metrics = UserMetrics()
    metrics.register(1, "orders.paid", CounterMetric()).inc()
    metrics.register(1, "orders_paid_total", CounterMetric()).inc()
    assert metrics.collect([1]) == [MetricSnapshot(1, "orders_paid", "counter", 2)]
    with pytest.raises(TopologyError, match=r"the gauge 'orders\.paid' and the counter 'orders_paid'"):
        metrics.register(2, "orders.paid", Gauge(lambda: 1))
    metrics.register(1, "wait_count", Gauge(lambda: 1))
    with pytest.raises(TopologyError, match="the histogram 'wait' and the gauge 'wait_count'"):
        metrics.register(1, "wait", HistogramMetric((1,)))
    metrics.register(1, "size", HistogramMetric((1,)))
    with pytest.raises(TopologyError, match="the counter 'size_sum' and the histogram 'size'"):
        metrics.register(1, "size_sum", CounterMetric())


def test_what_is_no_metric() -> None:
    """A counter cannot decrease, buckets must increase, and a gauge must be callable."""
    metrics = UserMetrics()
    with pytest.raises(ValueError, match="only grows"):
        metrics.register(1, "n", CounterMetric()).inc(-1)
    for buckets in ((), (1, 1), (2, 1), (1, math.inf), (math.nan,)):
        with pytest.raises(TopologyError, match="finite bounds that grow"):
            metrics.register(1, "h", HistogramMetric(buckets))
    with pytest.raises(TopologyError, match="needs a function"):
        metrics.register(1, "g", Gauge(5))  # type: ignore[arg-type]


def test_a_gauge_that_raises_is_omitted(caplog: pytest.LogCaptureFixture) -> None:
    """A failing gauge is omitted and logged at a limited rate; other gauges are reported."""
    metrics = UserMetrics()
    metrics.register(1, "broken", Gauge(lambda: 1 / 0))
    metrics.register(1, "whole", Gauge(lambda: 1))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert metrics.collect([1]) == [MetricSnapshot(1, "whole", "gauge", 1)]
    assert caplog.messages == [
        'gauge.failed task=1 metric=broken reason="ZeroDivisionError: division by zero"'
    ]


def test_a_context_alone_registers() -> None:
    """A bolt can be tested without a worker."""
    context = TopologyContext("t", pipeline({"s": FeederSpout(["number"]), "b": Sink()}), 1)
    assert isinstance(context.register_counter("n"), CounterMetric)
    assert isinstance(context.register_histogram("h"), HistogramMetric)
    context.register_gauge("g", lambda: 1)
    assert [each.name for each in context.metrics.collect([1])] == ["n", "h", "g"]
