"""When a probe is due."""

from __future__ import annotations

from tuplewire.session.retry import PROBE_SECONDS, ProbeTimer


def test_due_after_silence() -> None:
    """News put it off; the time without news makes it due."""
    timer = ProbeTimer(10.0)
    assert timer.wait(10.0) == PROBE_SECONDS
    timer.heard(10.5)
    assert timer.wait(11.0) == PROBE_SECONDS - 0.5
    assert timer.wait(10.5 + PROBE_SECONDS) == 0
    assert timer.wait(99.0) == 0
