"""Metrics that programs report to a worker: kept for a time, bounded, and never added up."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from tuplewire.errors import InvalidTaskError, MalformedError, ResourceLimitError, StaleAssignmentError
from tuplewire.wire import control_pb2 as pb
from tuplewire_service.admin.registered_families import (
    RegisteredSample,
    Reported,
    ReportedCollector,
    registered_families,
)
from tuplewire_service.control import metric_reports
from tuplewire_service.control.metric_reports import MetricReports, read_report


class Clock:
    """A clock that a test moves."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def counter(task: int, value: float, name: str = "orders", component: str = "bill") -> pb.RegisteredMetric:
    """Return a counter of a task."""
    return pb.RegisteredMetric(
        component=component, task=task, name=name, kind=pb.METRIC_KIND_COUNTER, value=value
    )


def request(
    *metrics: pb.RegisteredMetric,
    reporter: str = "p",
    version: int = 1,
    ended: bool = False,
    left_out: int = 0,
) -> pb.ReportMetricsRequest:
    """Return what a program says."""
    return pb.ReportMetricsRequest(
        reporter=reporter,
        assignment_version=version,
        metrics=metrics,
        ended=ended,
        left_out={"bill": left_out} if left_out else {},
    )


def told(reports: MetricReports) -> dict[tuple[int, str], float]:
    """Return the values that are told, by task and name."""
    return {(each.task, each.name): each.value for each in reports.told().samples}


def test_a_report_takes_the_place_of_the_last_one() -> None:
    """Nothing is added up: neither reports of one program, nor those of an earlier assignment."""
    clock = Clock()
    reports = MetricReports(clock)
    reports.take(read_report(request(counter(1, 5), left_out=2)), 1)
    reports.take(read_report(request(counter(2, 7), reporter="q")), 1)
    clock.now += 5
    reports.take(read_report(request(counter(1, 6))), 1)
    assert told(reports) == {(1, "orders"): 6, (2, "orders"): 7}
    assert reports.told().left_out == {}
    with pytest.raises(StaleAssignmentError, match="by assignment 1, and 2 is in force"):
        reports.take(read_report(request(counter(1, 9), reporter="r")), 2)
    assert told(reports) == {(1, "orders"): 6, (2, "orders"): 7}  # nobody says more yet
    reports.take(read_report(request(counter(2, 1), version=2)), 2)
    assert told(reports) == {(2, "orders"): 1}


def test_what_is_not_told_again_is_forgotten() -> None:
    """Who is killed is silent; who ends is told of for five minutes; one may take all back."""
    clock = Clock()
    reports = MetricReports(clock)
    for name, task in (("killed", 1), ("ended", 2), ("failed", 3)):
        reports.take(read_report(request(counter(task, task), reporter=name)), 1)
    clock.now += 5
    reports.take(read_report(request(counter(2, 20), reporter="ended", ended=True)), 1)
    reports.take(read_report(request(reporter="failed", ended=True)), 1)
    assert told(reports) == {(1, "orders"): 1, (2, "orders"): 20}
    clock.now += 25
    assert told(reports) == {(2, "orders"): 20}
    clock.now += 274.9
    assert told(reports) == {(2, "orders"): 20}
    clock.now += 1
    assert reports.told() == Reported([], {})


def test_reports_that_come_too_fast() -> None:
    """Twice a second, and the last one at once; who has ended says no more."""
    clock = Clock()
    reports = MetricReports(clock)
    reports.take(read_report(request(counter(1, 1))), 1)
    clock.now += 0.4
    with pytest.raises(ResourceLimitError, match=r"after less than 0\.5 s"):
        reports.take(read_report(request(counter(1, 2))), 1)
    reports.take(read_report(request(counter(1, 3), ended=True)), 1)
    with pytest.raises(ResourceLimitError, match="less than"):
        reports.take(read_report(request(counter(1, 4), ended=True)), 1)
    assert told(reports) == {(1, "orders"): 3}


def test_series_and_bytes_are_bounded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """First come, first kept; the rest is counted, by component, and told of in the log."""
    monkeypatch.setattr(metric_reports, "MOST_SERIES", 10)
    monkeypatch.setattr(metric_reports, "MOST_BYTES", 5000)
    clock = Clock()
    reports = MetricReports(clock)
    histogram = pb.RegisteredMetric(
        component="bill",
        task=1,
        name="sizes",
        kind=pb.METRIC_KIND_HISTOGRAM,
        value=2,
        bounds=[1, 2],
        counts=[1, 0, 0],
    )
    reports.take(read_report(request(*(counter(task, 1) for task in range(6)))), 1)
    reports.take(read_report(request(histogram, counter(7, 1), reporter="q", left_out=3)), 1)
    assert told(reports) == {(task, "orders"): 1 for task in (0, 1, 2, 3, 4, 5, 7)}
    assert reports.told().left_out == {"bill": 4}
    (line,) = caplog.messages
    assert line.startswith("metrics.left_out reporter=q metrics=1 most_series=10")
    clock.now += 5
    reports.take(read_report(request(counter(0, 2))), 1)
    reports.take(read_report(request(histogram, counter(7, 1), reporter="q")), 1)
    assert told(reports) == {(0, "orders"): 2, (1, "sizes"): 2, (7, "orders"): 1}
    long = counter(1, 1, component="c" * 256)
    with pytest.raises(ResourceLimitError, match=r"of 5000 in all: lower topology\.user\.metrics\.series"):
        reports.take(read_report(request(*[long] * 20, reporter="r")), 1)
    assert len(told(reports)) == 3


def of(change: Callable[[pb.RegisteredMetric], object], kind: pb.MetricKind) -> pb.ReportMetricsRequest:
    """Return a report with a metric that was changed."""
    metric = pb.RegisteredMetric(
        component="bill", task=1, name="n", kind=kind, value=1, bounds=[1, 2], counts=[1, 2, 3]
    )
    change(metric)
    return request(metric)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda metric: setattr(metric, "name", 'n{x="'), "1 to 100 letters, digits"),
        (lambda metric: setattr(metric, "name", ""), "1 to 100 letters"),
        (lambda metric: setattr(metric, "name", "n" * 101), "1 to 100 letters"),
        (lambda metric: setattr(metric, "name", "n_total"), "no `_total` at its end"),
        (lambda metric: setattr(metric, "component", ""), "a component has 1 to 256"),
        (lambda metric: setattr(metric, "component", "c" * 257), "a component has 1 to 256"),
        (lambda metric: setattr(metric, "kind", 99), "of the kind 99, which is none"),
        (lambda metric: metric.ClearField("kind"), "of the kind 0, which is none"),
        (lambda metric: metric.counts.append(1), "4 counts for 2 bounds"),
        (lambda metric: metric.bounds.__setitem__(1, 1), "and these grow"),
        (lambda metric: metric.bounds.__setitem__(1, math.inf), "and these grow"),
        (lambda metric: metric.bounds.__setitem__(0, math.nan), "and these grow"),
    ],
)
def test_what_cannot_be_told_is_refused(
    change: Callable[[pb.RegisteredMetric], object], problem: str
) -> None:
    """No report makes a page of metrics that Prometheus cannot read."""
    with pytest.raises(MalformedError, match=problem):
        read_report(of(change, pb.METRIC_KIND_HISTOGRAM))


def test_other_refusals() -> None:
    """A reporter has a name, a task is a task; a gauge has no buckets, whatever it says."""
    with pytest.raises(MalformedError, match="a reporter has 1 to 256"):
        read_report(request(reporter=""))
    with pytest.raises(InvalidTaskError):
        read_report(request(counter(-1, 1)))
    (sample,) = read_report(of(lambda _: None, pb.METRIC_KIND_GAUGE)).samples
    assert sample == RegisteredSample("bill", 1, "n", "gauge", 1)


def test_each_series_is_told_once() -> None:
    """Programs that mean different things by a name make no page that cannot be read."""
    samples = [
        RegisteredSample("a", 1, "n", "counter", 1),
        RegisteredSample("a", 1, "n", "counter", 2),
        RegisteredSample("b", 2, "n", "gauge", 3),
        RegisteredSample("b", 2, "n", "counter", 4),
        RegisteredSample("a", 1, "h", "histogram", 5, (1.0,), (1, 1)),
        RegisteredSample("b", 2, "h_count", "gauge", 6),
    ]
    found = {family.name: family for family in registered_families(samples)}
    assert found.keys() == {"tuplewire_user_n", "tuplewire_user_h"}
    assert [(each.labels["component"], each.value) for each in found["tuplewire_user_n"].samples] == [
        ("a", 1),
        ("b", 4),
    ]


def test_a_worker_without_reports_tells_nothing_of_them() -> None:
    """No family is there before the first report."""
    assert list(ReportedCollector(MetricReports().told).collect()) == []
    reports = MetricReports()
    reports.take(read_report(request(left_out=3)), 1)
    (family,) = ReportedCollector(reports.told).collect()
    assert family.name == "tuplewire_left_out_metrics"
    assert [each.value for each in family.samples] == [3]
