"""Pacing of small frames."""

from __future__ import annotations

import pytest

from tuplewire.connection.pacer import BURST_FRAMES, SMALL_FRAME_BYTES, Pacer

INTERVAL = 0.001


def test_a_burst_goes_at_once_and_what_follows_waits_for_an_interval() -> None:
    """A burst is sent without delay, and later frames are sent at the interval."""
    pacing, now, waits = Pacer(INTERVAL), 50.0, []
    for _ in range(BURST_FRAMES + 3):
        waits.append(pacing.wrote(now, 100))
        now += waits[-1]
    assert waits == pytest.approx([0.0] * (BURST_FRAMES - 1) + [INTERVAL] * 4, abs=1e-9)


def test_frames_that_come_at_the_interval_never_wait() -> None:
    """Frames that are written at the interval or more slowly are not delayed."""
    pacing = Pacer(INTERVAL)
    assert not any(pacing.wrote(50.0 + number * INTERVAL * 1.001, 100) for number in range(1000))


def test_a_writer_that_woke_late_catches_up() -> None:
    """After a wait that took too long, the next wait is shorter, because the pace is an average."""
    pacing = Pacer(INTERVAL)
    for _ in range(BURST_FRAMES):
        wait = pacing.wrote(50.0, 100)
    late = 50.0 + wait + INTERVAL * 0.4
    assert pacing.wrote(late, 100) == pytest.approx(INTERVAL * 0.6, abs=1e-9)


def test_large_frames_never_wait_nor_make_others_wait() -> None:
    """Large frames are not paced: they carry enough messages for their cost."""
    pacing = Pacer(INTERVAL)
    assert not any(pacing.wrote(50.0, SMALL_FRAME_BYTES) for _ in range(100))
    assert not pacing.wrote(50.0, 100)


def test_an_interval_of_zero_is_none() -> None:
    """An interval of 0 disables pacing."""
    pacing = Pacer(0.0)
    assert not any(pacing.wrote(50.0, 100) for _ in range(100))
