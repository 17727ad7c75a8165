"""Durations, time shares, loop lag, blocked messages, reported loads and congestion."""

from __future__ import annotations

import asyncio
import math
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuplewire.session.durations import BOUNDS, Durations
from tuplewire.session.flow import OutFrame
from tuplewire.session.ledger import Ledger
from tuplewire.session.pressure import BLOCKED_AFTER_SECONDS, OutboundPressure, ReportedLoads, SendingPressure
from tuplewire_service.worker.task_queue import QueueTimes
from tuplewire_service.worker.timekeeper import (
    _SAMPLE_SECONDS,
    BlockingTimes,
    LoopLag,
    StateSeconds,
    Timekeeper,
    TimeState,
    WorkerTotals,
)
from tuplewire_service.worker.worker import HIGH_LOAD, LOW_LOAD, find_congested

WAITS = st.lists(
    st.tuples(
        st.floats(0, 10),  # busy before it
        st.floats(0, 10),  # its length
        st.booleans(),
        st.booleans(),
        st.none() | st.floats(-20, 10),  # start of the connection's blocking, relative to the wait's start
    )
)


def buckets(durations: Durations) -> dict[float, int]:
    """Return the counts of the non-empty buckets by upper bound."""
    return {bound: count for bound, count in zip((*BOUNDS, math.inf), durations.counts, strict=True) if count}


def test_buckets_take_their_upper_bound() -> None:
    """A time counts in the first bucket with a bound that it does not exceed, and a negative one as zero."""
    durations = Durations()
    for seconds in (0.001, 0.0011, 61.0, -5.0):
        durations.add(seconds, 2)
    assert buckets(durations) == {0.001: 4, 0.0025: 2, math.inf: 2}
    assert durations.seconds == pytest.approx(2 * (0.001 + 0.0011 + 61.0))


def test_messages_of_a_queue_wait_from_arrival_to_first_delivery() -> None:
    """A delivery may split an arrival, and redelivered messages are not counted again. A time has 1 ms."""
    times, into = QueueTimes(), Durations()
    times.record_arrival(10, 0.0)
    times.record_arrival(12, 3.0)
    times.record_removal(4, 0.5, into)
    assert buckets(into) == {0.5: 4}
    times.record_removal(4, 9.0, into)  # a consumer that reconnected
    times.record_removal(11, 4.0, into)
    assert buckets(into) == {0.5: 4, 5.0: 6, 1.0: 1}
    times, into = QueueTimes(), Durations()
    for number in range(10_000):
        times.record_arrival(number + 1, number / 10_000)
    assert len(times._arrivals) <= 1000
    times.record_removal(10_000, 2.0, into)
    assert sum(into.counts) == 10_000
    assert into.seconds == pytest.approx(10_000 * 1.5, abs=10_000 * 0.001)


@given(WAITS)
def test_states_add_up_to_the_time_that_has_passed(
    waits: list[tuple[float, float, bool, bool, float | None]],
) -> None:
    """All states add up to the elapsed time, and no state is negative."""
    now = 100.0
    shares = StateSeconds(now)
    for busy, length, here, there, held in waits:
        began = now + busy
        now = began + length
        shares.record_wait(
            began,
            now,
            local_full=here,
            remote_full=there,
            blocked_since=None if held is None else began + held,
        )
    seconds = shares.seconds(now)
    assert set(seconds) == {state.value for state in TimeState}
    assert sum(seconds.values()) == pytest.approx(now - 100.0, abs=1e-9)
    assert min(seconds.values()) >= -1e-9
    assert seconds["busy"] == pytest.approx(sum(busy for busy, *_ in waits), abs=1e-9)


@pytest.mark.parametrize(
    ("here", "there", "blocked_since", "state"),
    [
        (False, False, None, "idle"),
        (False, True, None, "backpressured_credit"),
        (True, True, 0.0, "backpressured_queue"),
        (False, True, 0.0, "backpressured_socket"),
        (False, False, 9.999, "idle"),
    ],
)
def test_a_wait_counts_for_what_holds_messages_up(
    *, here: bool, there: bool, blocked_since: float | None, state: str
) -> None:
    """A full local queue takes priority over a blocked connection, and that over a full peer."""
    shares = StateSeconds(0.0)
    shares.record_wait(10.0, 10.004, local_full=here, remote_full=there, blocked_since=blocked_since)
    assert {name: s for name, s in shares.seconds(10.004).items() if s and name != "busy"} == {
        state: pytest.approx(0.004)
    }


def test_a_blocked_loop_is_seen_by_every_probe_that_was_due() -> None:
    """Two blocked seconds count as nine late probes, not as one; a very long stop as a limited number."""
    lag = LoopLag(0.0)
    wait = lag.probe(_SAMPLE_SECONDS)
    assert wait == pytest.approx(_SAMPLE_SECONDS)
    assert lag.probe(_SAMPLE_SECONDS * 2 + 2.0) == pytest.approx(_SAMPLE_SECONDS)
    assert sum(lag.delays.counts) == 1 + 9
    assert sum(count for bound, count in buckets(lag.delays).items() if bound >= 1.0) == 6
    slept = LoopLag(0.0)
    assert 0 < slept.probe(1e6) <= _SAMPLE_SECONDS + 1e-6
    assert sum(slept.delays.counts) == 1000


def test_blocking_is_bounded_and_keeps_its_series() -> None:
    """The first pairs keep separate series, and later pairs share one."""
    blocking = BlockingTimes(2)
    for tasks in pairwise(range(100)):
        blocking.add([(task, "local") for task in tasks], 1.0)
    seconds = blocking.seconds
    assert set(seconds) == {("0", "local"), ("1", "local"), ("other", "other")}
    assert sum(seconds.values()) == pytest.approx(2 * 99)


def test_blocking_forgets_what_is_gone() -> None:
    """A pair outside the assignment frees its series, and stays removed; the shared series is retained."""
    blocking = BlockingTimes(3)
    blocking.add([(1, "local"), (2, "local"), (1, "w2"), (3, "local")], 1.0)
    blocking.retain_only({1, 4}, {"local"})
    assert set(blocking.seconds) == {("1", "local"), ("other", "other")}
    blocking.add([(1, "local"), (4, "local"), (2, "local"), (4, "w2")], 1.0)
    assert blocking.seconds == {("1", "local"): 2.0, ("4", "local"): 1.0, ("other", "other"): 1.0}


def test_the_last_seconds_are_told_apart() -> None:
    """Only blocking in the last seconds is reported, and a forgotten pair restarts from zero."""
    old, new = ("1", "local"), ("2", "local")
    first = WorkerTotals(2.0, {"accepted": 20, "dropped": 1}, {"busy": 2.0}, {old: 2.0})
    assert first.increase_since(WorkerTotals(0.0)) == first
    mark = WorkerTotals(5.0, {"accepted": 100, "dropped": 1}, {"busy": 3.0, "idle": 2.0}, {old: 3.0})
    now = {"accepted": 160, "dropped": 1}
    told = WorkerTotals(12.0, now, {"busy": 3.0, "idle": 9.0}, {old: 3.0, new: 1.5}).increase_since(mark)
    assert told == WorkerTotals(7.0, {"accepted": 60}, {"idle": 7.0}, {new: 1.5})
    assert not WorkerTotals(12.0, now, {}, {old: 0.5}).increase_since(mark).blocking_seconds


BETWEEN = (HIGH_LOAD + LOW_LOAD) / 2


async def test_the_mark_of_the_last_seconds_advances() -> None:
    """After two spans, the mark is between one and two spans old."""
    servers = SimpleNamespace(tasks_without_credit=set)
    router = SimpleNamespace(
        ledger=lambda: Ledger().snapshot(0), connections=SimpleNamespace(blocked_tasks=tuple), location_of=str
    )
    times = Timekeeper(cast("Any", router), cast("Any", servers), 10)
    start = times._recent_totals[0].seconds
    now = 0.0
    times._clock = lambda: start + now
    for now, age in ((4.9, 4.9), (5.0, 5.0), (9.9, 9.9), (10.0, 5.0), (14.9, 9.9), (15.0, 5.0)):
        looking = asyncio.create_task(times.sample_periodically())
        await asyncio.sleep(0)
        looking.cancel()
        assert start + now - times._recent_totals[0].seconds == pytest.approx(age)


class Clock:
    """The time, in seconds."""

    now = 100.0


def pressure_of(session: StubSession, outbound: OutboundPressure) -> SendingPressure:
    """Return the pressure tracking of a session."""
    return SendingPressure(cast("Any", session), lambda: Clock.now, outbound)


class StubSession:
    """A SendSession with only the attributes that the pressure tracking reads."""

    def __init__(self) -> None:
        self.blocked_flows: dict[int, None] = {}
        self.messages = self.acked_frame = 0
        self.at_frame_limit = False

    def waiting_tasks(self) -> set[int]:
        return {1, 2, 3}


def test_what_is_blocked_by_a_connection_that_takes_nothing() -> None:
    """A stalled connection blocks all waiting tasks; any other one blocks the tasks without credit."""
    outbound, session = OutboundPressure(), StubSession()
    pressure = pressure_of(session, outbound)
    session.blocked_flows = {1: None}
    session.messages = 1
    assert pressure.blocked_tasks() == {1}
    pressure.refresh(connected=False)
    Clock.now += 2 * BLOCKED_AFTER_SECONDS
    assert pressure.blocked_tasks() == {1, 2, 3}
    pressure.on_connected()
    assert pressure.blocked_tasks() == {1}


def test_a_connection_is_held_up_after_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short pause does not count as blocked, and a second report does not restart the pause."""
    outbound, session = OutboundPressure(), StubSession()
    session.at_frame_limit = True
    first, second = (pressure_of(session, outbound) for _ in range(2))

    def blocked(pressure: SendingPressure, now: float) -> bool:
        monkeypatch.setattr(Clock, "now", now)
        return bool(pressure.blocked_tasks())

    def idles(pressure: SendingPressure, now: float) -> None:
        monkeypatch.setattr(Clock, "now", now)
        pressure.on_idle()

    nothing = outbound.paused_since
    assert nothing is None
    assert not blocked(first, 100.0)
    idles(first, 1.0)
    idles(first, 1.0 + BLOCKED_AFTER_SECONDS)
    idles(second, 2.0)
    assert outbound.paused_since == 1.0
    assert not blocked(first, 1.0 + BLOCKED_AFTER_SECONDS / 2)
    assert not blocked(first, 1.0 + BLOCKED_AFTER_SECONDS)
    assert blocked(first, 1.0 + 1.5 * BLOCKED_AFTER_SECONDS)
    assert not blocked(second, 1.0 + 1.5 * BLOCKED_AFTER_SECONDS)
    first.on_resume()
    assert not blocked(first, 100.0)
    idles(first, 4.0)
    assert outbound.paused_since == 2.0
    assert not blocked(first, 4.0 + BLOCKED_AFTER_SECONDS / 2)


def test_frames_take_from_first_writing_to_acknowledgement(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame that is rewritten after a disconnect is timed from its first write."""
    outbound, session = OutboundPressure(), StubSession()
    pressure = pressure_of(session, outbound)
    for sequence, messages, now in ((1, 100, 0.0), (2, 1, 1.0), (1, 100, 2.0)):
        monkeypatch.setattr(Clock, "now", now)
        pressure.on_write(OutFrame(sequence, [], [], messages, 0))
    monkeypatch.setattr(Clock, "now", 2.4)
    for session.acked_frame, counted in ((1, 100), (2, 101)):
        pressure.on_acknowledged()
        counts = outbound.send_to_ack.counts
        assert counts[BOUNDS.index(2.5)] == sum(counts) == counted
    assert outbound.send_to_ack.seconds == pytest.approx(100 * 2.4 + 1.4)


def test_a_task_is_congested_from_the_high_mark_to_the_low_one() -> None:
    """Between the marks, a task keeps its previous state."""
    tasks: frozenset[int] = frozenset()
    seen = []
    for load in (BETWEEN, HIGH_LOAD, BETWEEN, LOW_LOAD, BETWEEN):
        tasks = find_congested({1: load}, tasks)
        seen.append(1 in tasks)
    assert seen == [False, True, True, False, False]


def test_a_report_holds_until_it_expires_or_is_withdrawn() -> None:
    """A report lasts until it expires or is withdrawn; repeating it extends it, and others are unknown."""
    reported = ReportedLoads(10.0)
    reported.update({1: 1.0, 2: 0.25, 3: 1.0}, 0.0)
    reported.update({1: 0.5}, 6.0)
    reported.forget([3])
    for now, known in ((9.9, {1: 0.5, 2: 0.25}), (10.0, {1: 0.5}), (16.0, {})):
        assert reported.get([1, 2, 3, 4], now) == known
        assert reported.tasks(now) == known.keys()
    assert len(reported._reports) == 2
    reported.update({2: 1.0}, 20.0)
    assert set(reported._reports) == {2}, "the next report removes the expired ones"
