"""Blocked messages, reported loads and congestion: how they are recorded, and when they expire."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tuplewire.session.durations import BOUNDS
from tuplewire.session.flow import OutFrame
from tuplewire.session.pressure import HELD_SECONDS, OutboundPressure, ReportedLoads, SendingPressure
from tuplewire_service.worker.worker import HIGH_LOAD, LOW_LOAD, congested

BETWEEN = (HIGH_LOAD + LOW_LOAD) / 2


def test_expired_reports_take_no_memory() -> None:
    """The next report of any task removes the expired reports."""
    reported = ReportedLoads(10.0)
    reported.take(dict.fromkeys(range(1000), 1.0), 0.0)
    reported.take({1: 1.0}, 9.0)
    assert len(reported._reports) == 1000
    reported.take({2: 1.0}, 10.0)
    assert set(reported._reports) == {1, 2}


class Clock:
    """The time, in seconds."""

    now = 100.0


def session_of(window: Window, outbound: OutboundPressure) -> SendingPressure:
    """Return the pressure tracking of a window."""
    return SendingPressure(cast("Any", window), lambda: Clock.now, outbound)


class Window:
    """A send window with the attributes that the pressure tracking reads."""

    def __init__(self) -> None:
        self.without_credit: dict[int, None] = {}
        self.messages = self.acknowledged = 0
        self.full = False

    def waiting_tasks(self) -> set[int]:
        """Return the tasks with unwritten messages."""
        return {1, 2, 3}


def test_tasks_without_credit_are_counted_over_all_connections() -> None:
    """The number of tasks without credit follows the changes on all connections."""
    outbound, windows = OutboundPressure(), [Window(), Window()]
    sessions = [session_of(window, outbound) for window in windows]
    windows[0].without_credit = {1: None, 2: None}
    windows[1].without_credit = {3: None}
    for each in sessions:
        each.refresh(connected=True)
        each.refresh(connected=True)
    assert outbound.without_credit == 3
    windows[0].without_credit = {}
    sessions[0].refresh(connected=True)
    assert outbound.without_credit == 1


def test_what_is_blocked_by_a_connection_that_takes_nothing() -> None:
    """A stalled connection blocks all waiting tasks; any other one blocks the tasks without credit."""
    outbound, window = OutboundPressure(), Window()
    session = session_of(window, outbound)
    window.without_credit = {1: None}
    window.messages = 1
    assert session.blocked_tasks() == {1}
    session.refresh(connected=False)
    Clock.now += 2 * HELD_SECONDS
    assert session.blocked_tasks() == {1, 2, 3}
    session.opened()
    assert session.blocked_tasks() == {1}


def test_a_connection_is_held_up_after_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short pause does not count as blocked, and a second report does not restart the pause."""
    outbound, window = OutboundPressure(), Window()
    window.full = True
    first, second = (session_of(window, outbound) for _ in range(2))

    def blocked(session: SendingPressure, now: float) -> bool:
        monkeypatch.setattr(Clock, "now", now)
        return bool(session.blocked_tasks())

    def idles(session: SendingPressure, now: float) -> None:
        monkeypatch.setattr(Clock, "now", now)
        session.on_idle()

    nothing = outbound.held_since
    assert nothing is None
    assert not blocked(first, 100.0)
    idles(first, 1.0)
    idles(first, 1.0 + HELD_SECONDS)
    idles(second, 2.0)
    assert outbound.held_since == 1.0
    assert not blocked(first, 1.0 + HELD_SECONDS / 2)
    assert not blocked(first, 1.0 + HELD_SECONDS)
    assert blocked(first, 1.0 + 1.5 * HELD_SECONDS)
    assert not blocked(second, 1.0 + 1.5 * HELD_SECONDS)
    first.on_resume()
    assert not blocked(first, 100.0)
    idles(first, 4.0)
    assert outbound.held_since == 2.0
    assert not blocked(first, 4.0 + HELD_SECONDS / 2)


def test_frames_take_from_first_writing_to_acknowledgement(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame that is rewritten after a disconnect is timed from its first write."""
    outbound, window = OutboundPressure(), Window()
    session = session_of(window, outbound)
    for sequence, messages, now in ((1, 100, 0.0), (2, 1, 1.0), (1, 100, 2.0)):
        monkeypatch.setattr(Clock, "now", now)
        session.on_write(OutFrame(sequence, [], [], messages, 0))
    monkeypatch.setattr(Clock, "now", 2.4)
    for window.acknowledged, counted in ((1, 100), (2, 101)):
        session.acknowledged()
        counts = outbound.send_to_ack.counts
        assert counts[BOUNDS.index(2.5)] == sum(counts) == counted
    assert outbound.send_to_ack.seconds == pytest.approx(100 * 2.4 + 1.4)


@pytest.mark.parametrize("full", [False, True])
def test_a_driver_that_stops_at_a_full_window_is_held_up(*, full: bool) -> None:
    """A driver is blocked if the window is full; otherwise it has nothing to write."""
    outbound, window = OutboundPressure(), Window()
    session = session_of(window, outbound)
    window.full = full
    session.on_idle()
    assert (session in outbound.held) == full
    session.on_resume()
    assert not outbound.held


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
    """A report lasts until it expires or is withdrawn; repeating it extends it, and others are unknown."""
    reported = ReportedLoads(10.0)
    reported.take({1: 1.0, 2: 0.25, 3: 1.0}, 0.0)
    reported.take({1: 0.5}, 6.0)
    reported.forget([3])
    for now, known in ((9.9, {1: 0.5, 2: 0.25}), (10.0, {1: 0.5}), (16.0, {})):
        assert reported.of([1, 2, 3, 4], now) == known
        assert reported.tasks(now) == known.keys()
