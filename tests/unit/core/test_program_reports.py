"""Reports of programs to a worker: they expire, are bounded, and are shown with smooth counts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from helpers.program_reports import component, counter, histogram, report

from tuplewire.errors import MalformedError, ResourceLimitError, StaleAssignmentError
from tuplewire.wire import control_pb2 as pb
from tuplewire_service.control import program_reports
from tuplewire_service.control.program_reports import (
    MAX_COMPONENT_BYTES,
    REPORT_TIMEOUT_SECONDS,
    RETENTION_SECONDS,
    ProgramReports,
    check_report,
)
from tuplewire_service.metrics.families import families


class Worker:
    """The reports of a worker with assignment 1, and its clock."""

    def __init__(self) -> None:
        self.now = 100.0
        self.reports = ProgramReports(lambda: self.now)
        self.version = 1

    def take(self, *parts: Any, program: str = "p", owner: str = "", **more: Any) -> None:
        request = report(*parts, program=program, **more)
        check_report(request)
        self.reports.store(owner, request, self.version)

    def values(self) -> dict[tuple[str, ...], float]:
        """Return the values of the metrics, by name without prefix and labels."""
        return {
            (family.name.removeprefix("tuplewire_user_"), *sample.label_values): sample.value
            for family in self.reports.metrics()
            for sample in family.samples
        }

    def shown(self) -> list[pb.ComponentStatus]:
        status = pb.GetStatusResponse()
        self.reports.add_to(status)
        return list(status.components)


def test_a_report_replaces_the_last_one() -> None:
    """A report replaces the program's previous one, and a new assignment clears all reports."""
    worker = Worker()
    worker.take(counter(1, 5))
    worker.take(counter(2, 7), program="q")
    worker.now += 5
    worker.take(counter(1, 6))
    both = {("orders", "bill", "1"): 6, ("orders", "bill", "2"): 7}
    assert worker.values() == both
    worker.version = 2
    with pytest.raises(StaleAssignmentError, match="for assignment 1, and the current one is 2"):
        worker.take(counter(1, 9), program="r")
    assert worker.values() == both  # no program has reported for the new assignment yet
    worker.take(counter(2, 1), version=2)
    assert worker.values() == {("orders", "bill", "2"): 1}


def test_who_is_silent_is_forgotten() -> None:
    """A silent program expires after ten seconds; the final metrics of a stopped one, after five minutes."""
    worker = Worker()
    for name, task in (("killed", 1), ("ended", 2), ("failed", 3)):
        worker.take(component(task, 1), counter(task, task), program=name)
    worker.now += 5
    worker.take(component(2, 1), counter(2, 20), program="ended", ended=True)
    worker.take(component(3, 1), program="failed", ended=True)
    assert [each.first_task for each in worker.shown()[0].executors] == [1]
    assert worker.values() == {("orders", "bill", "1"): 1, ("orders", "bill", "2"): 20}
    worker.now += REPORT_TIMEOUT_SECONDS - 5
    assert worker.values() == {("orders", "bill", "2"): 20}
    assert worker.shown() == []
    worker.now += RETENTION_SECONDS - REPORT_TIMEOUT_SECONDS
    assert worker.values() == {("orders", "bill", "2"): 20}
    worker.now += 5
    assert worker.values() == {}


def test_reports_that_come_too_fast() -> None:
    """A program may report every 0.5 s; only its final report is accepted at any time."""
    worker = Worker()
    worker.take(counter(1, 1))
    worker.now += 0.4
    with pytest.raises(ResourceLimitError, match=r"after less than 0\.5 s"):
        worker.take(counter(1, 2))
    worker.take(counter(1, 3), ended=True)
    with pytest.raises(ResourceLimitError, match="less than"):
        worker.take(counter(1, 4), ended=True)
    assert worker.values() == {("orders", "bill", "1"): 3}
    worker.now += 0.5
    worker.take(counter(1, 5))
    assert worker.values() == {("orders", "bill", "1"): 5}


def test_series_and_bytes_are_bounded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Series beyond the limit are dropped, counted by component and logged."""
    monkeypatch.setattr(program_reports, "MAX_SERIES", 10)
    monkeypatch.setattr(program_reports, "MAX_BYTES", 5000)
    worker = Worker()
    worker.take(*(counter(task, 1) for task in range(6)))
    worker.take(histogram(1), counter(7, 1), program="q")  # of 5, 4 are free
    kept: dict[tuple[str, ...], float] = {("orders", "bill", str(task)): 1 for task in (0, 1, 2, 3, 4, 5, 7)}
    assert worker.values() == {**kept, ("tuplewire_omitted_metrics", "bill"): 1}
    (line,) = caplog.messages
    assert line.startswith("metrics.omitted program=q metrics=1 max_series=10")
    worker.now += 5
    worker.take(counter(0, 2))
    worker.take(histogram(1), counter(7, 1), program="q")
    assert worker.values() == {
        ("orders", "bill", "0"): 2,
        ("sizes", "bill", "1"): 2,
        ("orders", "bill", "7"): 1,
    }
    with pytest.raises(ResourceLimitError, match=r"of 5000 bytes: lower topology\.user\.metrics\.series"):
        worker.take(*[counter(1, 1, component="c" * 256)] * 20, program="r")
    assert len(worker.values()) == 3


def test_components_are_bounded() -> None:
    """A report that exceeds the size limit is refused; a smaller one is accepted afterwards."""
    worker = Worker()
    large = pb.ComponentStatus(component="x" * (MAX_COMPONENT_BYTES // 2))
    worker.take(large, program="one")
    worker.now += 1
    worker.take(large, program="one")
    with pytest.raises(ResourceLimitError, match="fewer executors"):
        worker.take(large, program="two")
    worker.take(component(1, 1), program="two")
    assert len(worker.shown()) == 2


def test_counts_grow_evenly_between_reports() -> None:
    """Counts are interpolated between two reports, unless the program restarted, so that they have fallen."""
    worker = Worker()
    worker.take(component(1, 100, 10.0))
    assert worker.shown()[0].executors[0].executed == 100
    worker.now += 1
    worker.take(component(1, 300, 11.0))
    seen = []
    for _ in range(4):
        (shown,) = worker.shown()
        (executor,) = shown.executors
        assert shown.inputs[0].executed == executor.executed
        assert executor.queued_tuples == 7
        seen.append((executor.executed, executor.busy_seconds))
        worker.now += 0.5
    assert seen == [(100, 10.0), (200, 10.5), (300, 11.0), (300, 11.0)]
    worker.take(component(1, 4))
    assert worker.shown()[0].executors[0].executed == 4


def test_programs_count_together() -> None:
    """Each component is shown once, with the executors of all programs."""
    worker = Worker()
    worker.take(component(1, 100), program="one")
    worker.take(component(2, 50), program="two")
    worker.take(component(2, 1), program="one", owner="token other")
    (shown,) = worker.shown()
    assert [each.executed for each in shown.executors] == [100, 50, 1]
    assert shown.inputs[0].executed == 151


@pytest.mark.parametrize(("executed", "busy"), [(1 << 60, 0.0), (1, -1.0), (1, math.inf), (1, math.nan)])
def test_impossible_counts_are_refused(executed: int, busy: float) -> None:
    """Impossible counts are refused, because they would break the status and the page's JSON."""
    with pytest.raises(MalformedError, match="component 'count'"):
        check_report(report(component(1, executed, busy)))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda family: setattr(family, "name", 'tuplewire_n{x="'), "1 to 100 letters, digits"),
        (lambda family: setattr(family, "name", "tuplewire_"), "1 to 100 letters"),
        (lambda family: setattr(family, "name", "go_threads"), "is `tuplewire_` and 1 to 100"),
        (lambda family: setattr(family, "name", "tuplewire_" + "n" * 101), "1 to 100 letters"),
        (lambda family: setattr(family, "name", "tuplewire_n_total"), "without `_total` at the end"),
        (lambda family: setattr(family, "kind", 99), "of the kind 99, which does not exist"),
        (lambda family: family.ClearField("kind"), "of the kind 0, which does not exist"),
        (lambda family: setattr(family, "kind", pb.METRIC_KIND_GAUGE), "3 counts for 2 bounds"),
        (lambda family: setattr(family, "kind", pb.METRIC_KIND_SUMMARY), "a summary one and no bounds"),
        (lambda family: family.samples[0].counts.append(1), "4 counts for 2 bounds"),
        (lambda family: family.samples[0].bounds.__setitem__(1, 1), "do not grow"),
        (lambda family: family.samples[0].bounds.__setitem__(1, math.inf), "are not finite"),
        (lambda family: family.samples[0].bounds.__setitem__(0, math.nan), "are not finite"),
        (lambda family: family.samples[0].label_values.__setitem__(0, ""), "a component has 1 to 256"),
        (lambda family: family.samples[0].label_values.__setitem__(1, "t" * 257), "a task has 1 to 256"),
        (lambda family: family.samples[0].label_values.append("x"), "has 3 labels, and its family 2"),
        (lambda family: family.label_names.__setitem__(0, "le"), "cannot have the labels"),
        (lambda family: family.label_names.__setitem__(0, "task"), "cannot have the labels"),
        (lambda family: family.label_names.__setitem__(0, 'a="'), "cannot have the labels"),
        (lambda family: family.label_names.extend("abcdefghi"), "cannot have the labels"),
    ],
)
def test_what_cannot_be_shown_is_refused(change: Callable[[pb.MetricFamily], object], problem: str) -> None:
    """A report cannot create a metrics page that Prometheus fails to parse."""
    family = histogram(1)
    change(family)
    with pytest.raises(MalformedError, match=problem):
        check_report(report(family))


def test_other_refusals() -> None:
    """A program must have a name, and its metrics must not collide with the worker's metrics."""
    with pytest.raises(MalformedError, match="a program has 1 to 256"):
        check_report(report(program=""))
    for own in ("tuplewire_user_sizes", "tuplewire_user_sizes_sum"):
        with pytest.raises(MalformedError, match="the worker has a metric 'tuplewire_user_sizes' of its own"):
            check_report(report(histogram(1)), frozenset([own]))
    check_report(report(histogram(1)), frozenset(["tuplewire_user_orders"]))


def test_a_name_has_one_meaning() -> None:
    """If programs define the same metric differently, the page shows only the first definition."""
    gauge = counter(2, 3)
    gauge.kind = pb.METRIC_KIND_GAUGE
    part = counter(2, 6, "sizes_count")
    other = counter(5, 5)
    other.label_names[1] = "executor"
    found = {family.name: family for family in families([counter(1, 1), gauge, histogram(1), part, other])}
    assert found.keys() == {"tuplewire_user_orders", "tuplewire_user_sizes"}
    assert [(each.labels["task"], each.value) for each in found["tuplewire_user_orders"].samples] == [
        ("1", 1)
    ]


def test_samples_with_the_same_labels_are_added_up() -> None:
    """Samples of one component in two programs are summed; histograms only if their bounds agree."""
    strange = histogram(1)
    strange.samples[0].bounds[:] = [5, 6]
    summary = pb.MetricFamily(name="tuplewire_s", kind=pb.METRIC_KIND_SUMMARY, label_names=["component"])
    summary.samples.add(label_values=["bill"], value=0.5, counts=[3])
    reported = [counter(1, 1), counter(1, 2), histogram(1), histogram(1), strange, summary, summary]
    samples = {
        (each.name, each.labels.get("le")): each.value
        for family in families(reported)
        for each in family.samples
    }
    assert samples == {
        ("tuplewire_user_orders_total", None): 3,
        ("tuplewire_user_sizes_bucket", "1.0"): 2,
        ("tuplewire_user_sizes_bucket", "2.0"): 2,
        ("tuplewire_user_sizes_bucket", "+Inf"): 2,
        ("tuplewire_user_sizes_count", None): 2,
        ("tuplewire_user_sizes_sum", None): 4,
        ("tuplewire_s_count", None): 6,
        ("tuplewire_s_sum", None): 1,
    }
