"""Congestion: a high and a low mark, and no change of state in between."""

from __future__ import annotations

from tuplewire.session.pressure import ReportedLoads
from tuplewire_service.worker.worker import HIGH_LOAD, LOW_LOAD, congested

BETWEEN = (HIGH_LOAD + LOW_LOAD) / 2


def test_a_task_is_congested_from_the_high_mark_to_the_low_one() -> None:
    """Between the marks, a task keeps its previous state."""
    tasks: frozenset[int] = frozenset()
    seen = []
    for load in (BETWEEN, HIGH_LOAD, BETWEEN, LOW_LOAD, BETWEEN):
        tasks = congested({1: load}, tasks)
        seen.append(1 in tasks)
    assert seen == [False, True, True, False, False]


def test_a_task_that_has_left_is_relieved() -> None:
    """A task that this worker no longer owns is no longer congested."""
    assert congested({2: 1.0}, congested({1: 1.0, 2: 1.0}, ())) == {2}


def test_a_report_holds_until_it_expires_or_is_withdrawn() -> None:
    """A report lasts until it expires or is withdrawn; repeating it extends it."""
    reported = ReportedLoads(10.0)
    reported.take(dict.fromkeys([1, 2, 3], 1.0), 0.0)
    reported.take({1: 1.0}, 6.0)
    reported.forget([3])
    assert reported.tasks(9.9) == {1, 2}
    assert reported.tasks(10.0) == {1}
    assert reported.tasks(16.0) == frozenset()
