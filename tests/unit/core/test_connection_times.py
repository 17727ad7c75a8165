"""Times of a connection: pacing of small frames, and backoff."""

from __future__ import annotations

import pytest

from tuplewire.connection.pacer import BURST_FRAMES, SMALL_FRAME_BYTES, Pacer
from tuplewire.session import backoff as backoff_module
from tuplewire.session.backoff import Backoff

INTERVAL = 0.001


def test_a_burst_goes_at_once_and_what_follows_waits_for_an_interval() -> None:
    """A burst is sent without delay, and later frames are sent at the interval."""
    pacing, now, waits = Pacer(INTERVAL), 50.0, []
    for _ in range(BURST_FRAMES + 3):
        waits.append(pacing.record_write(now, 100))
        now += waits[-1]
    assert waits == pytest.approx([0.0] * (BURST_FRAMES - 1) + [INTERVAL] * 4, abs=1e-9)


def test_a_writer_that_woke_late_catches_up() -> None:
    """After a wait that took too long, the next wait is shorter, because the pace is an average."""
    pacing = Pacer(INTERVAL)
    for _ in range(BURST_FRAMES):
        wait = pacing.record_write(50.0, 100)
    late = 50.0 + wait + INTERVAL * 0.4
    assert pacing.record_write(late, 100) == pytest.approx(INTERVAL * 0.6, abs=1e-9)


def test_large_frames_never_wait_nor_make_others_wait() -> None:
    """Large frames are not paced: they carry enough messages for their cost."""
    pacing = Pacer(INTERVAL)
    assert not any(pacing.record_write(50.0, SMALL_FRAME_BYTES) for _ in range(100))
    assert not pacing.record_write(50.0, 100)


def test_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ceiling of a delay doubles up to a maximum, until a success; the delay is random."""
    monkeypatch.setattr(backoff_module, "random", lambda: 1.0)
    backoff = Backoff(0.5, 3.0)
    assert [backoff.next() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    backoff.reset()
    assert backoff.next() == 0.5
    rolls = iter([0.0, 0.25, 0.99])
    monkeypatch.setattr(backoff_module, "random", lambda: next(rolls))
    backoff = Backoff(1.0, 100.0)
    assert [backoff.next() for _ in range(3)] == [0.0, 0.5, 3.96]
