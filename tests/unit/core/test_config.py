"""SessionSettings: validation, names and error messages."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from tuplewire.errors import ConfigError
from tuplewire.settings.config import AckMode, Overflow, SessionSettings

NO_BOUNDS = {"ack_mode", "overflow", "linger_seconds", "reject_order"}
NUMBERS = [f.name for f in fields(SessionSettings) if f.name not in NO_BOUNDS]


def test_gathering_for_no_time_is_none() -> None:
    """linger_seconds may be 0, but not negative."""
    assert SessionSettings(linger_seconds=0).linger_seconds == 0
    with pytest.raises(ConfigError, match=r"linger_seconds must be .* from 0, not -1"):
        SessionSettings(linger_seconds=-1)


@pytest.mark.parametrize("name", NUMBERS)
def test_positive(name: str) -> None:
    """All other bounds and times must be positive; the error names the setting."""
    with pytest.raises(ConfigError, match=rf"{name} must be .* (from 1|more than 0), not 0"):
        SessionSettings(**{name: 0})  # type: ignore[arg-type]


def test_pending_holds_a_message() -> None:
    """max_pending_bytes must be at least max_message_bytes."""
    SessionSettings(max_pending_bytes=10, max_message_bytes=10)
    with pytest.raises(ConfigError, match=r"max_pending_bytes \(10\) must be at least max_message_bytes"):
        SessionSettings(max_pending_bytes=10, max_message_bytes=11)


def test_request_holds_a_frame() -> None:
    """The request limit exceeds a full frame plus one more message."""
    settings = SessionSettings(max_frame_bytes=1000, max_message_bytes=500)
    assert settings.max_request_bytes > 1500


def test_names() -> None:
    """Modes may be given as strings."""
    settings = SessionSettings.of(ack_mode="processed", overflow="fail", prefetch_messages=1)
    assert settings == SessionSettings(
        ack_mode=AckMode.PROCESSED, overflow=Overflow.FAIL, prefetch_messages=1
    )


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"ack_mod": "queued"}, "unknown setting 'ack_mod'; did you mean ack_mode"),
        ({"ack_mode": "never"}, "ack_mode must be one of queued, processed, not 'never'"),
        ({"max_pending_messages": 1.5}, "max_pending_messages must be a whole number from 1, not 1.5"),
        ({"max_pending_bytes": "5"}, "max_pending_bytes must be a number of bytes from 1, not '5'"),
    ],
)
def test_errors(given: dict[str, Any], says: str) -> None:
    """An unknown name or value raises a ConfigError that names it."""
    with pytest.raises(ConfigError, match=says):
        SessionSettings.of(**given)
