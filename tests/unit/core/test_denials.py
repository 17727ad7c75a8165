"""Denials are counted one by one, and logged so that nobody can fill the log."""

from __future__ import annotations

import logging

import pytest

from tuplewire_service.security.guard import Guard


def test_each_client_and_reason_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """Every one counts; the log has a line for each client and reason. What bounds it: test_log_rate.py."""
    guard = Guard(topology="t")
    with caplog.at_level(logging.WARNING):
        for _ in range(4):
            guard.denied("a", "task", "why")
            guard.denied("b", "task", "why")
        guard.denied("b", "name", "why")
    assert guard.denials == {"task": 8, "name": 1}
    assert len(caplog.records) == 3
