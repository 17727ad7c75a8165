"""Denials are counted one by one, and logged so that nobody can fill the log."""

from __future__ import annotations

import logging

import pytest

from tuplewire_service.security.guard import Denials


def test_each_client_and_reason_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """Every one counts; the log has a line for each client and reason, and one more after a minute."""
    now = 0.0
    denials = Denials(lambda: now)
    with caplog.at_level(logging.WARNING):
        for second in (0, 1, 59, 61):
            now = float(second)
            denials.note("a", "task", "why")
            denials.note("b", "task", "why")
    assert denials.counts["task"] == 8
    assert len(caplog.records) == 4


def test_memory_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    """Clients without end are forgotten again, the oldest first."""
    denials = Denials(lambda: 0.0)
    with caplog.at_level(logging.CRITICAL):
        for number in range(5000):
            denials.note(f"client {number}", "name", "")
    assert len(denials._logged) == 1000
    assert ("client 4999", "name") in denials._logged
