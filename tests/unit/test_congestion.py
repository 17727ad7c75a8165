"""Congestion: two marks, and in between what was before."""

from __future__ import annotations

from tuplewire.session.pressure import ReportedLoads
from tuplewire_service.worker.worker import HIGH_LOAD, LOW_LOAD, Congestion

BETWEEN = (HIGH_LOAD + LOW_LOAD) / 2


def test_a_task_is_congested_from_the_high_mark_to_the_low_one() -> None:
    """Between the marks a task stays what it was."""
    congestion = Congestion()
    seen = []
    for load in (BETWEEN, HIGH_LOAD, BETWEEN, LOW_LOAD, BETWEEN):
        relieved = congestion.look({1: load})
        seen.append((1 in congestion.tasks, 1 in relieved))
    assert seen == [(False, False), (True, False), (True, False), (False, True), (False, False)]


def test_a_task_that_has_left_is_relieved() -> None:
    """A task that is no longer here holds nobody back here."""
    congestion = Congestion()
    congestion.look({1: 1.0, 2: 1.0})
    assert congestion.look({2: 1.0}) == {1}
    assert congestion.tasks == {2}


def test_a_report_holds_until_it_expires_or_is_withdrawn() -> None:
    """A repeated report holds on; one that is neither repeated nor withdrawn expires."""
    reported = ReportedLoads(10.0)
    reported.take(dict.fromkeys([1, 2, 3], 1.0), 0.0)
    reported.take({1: 1.0}, 6.0)
    reported.forget([3])
    assert reported.tasks(9.9) == {1, 2}
    assert reported.tasks(10.0) == {1}
    assert reported.tasks(16.0) == frozenset()
