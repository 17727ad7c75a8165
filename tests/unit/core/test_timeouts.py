"""Invalid timeouts."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tuplewire import Client
from tuplewire.errors import ConfigError
from tuplewire.settings.config import SessionSettings, check_timeout

WRONG = [timedelta(seconds=5), "5", math.nan, [5]]
each_wrong = pytest.mark.parametrize("wrong", WRONG, ids=lambda value: type(value).__name__)

CALLS: dict[str, Callable[[Client, Any], object]] = {
    "send": lambda client, wrong: client.send(1, b"x" * 5000, timeout=wrong),
    "flush": lambda client, wrong: client.flush(wrong),
    "close": lambda client, wrong: client.close(wrong),
    "recv": lambda client, wrong: client.recv([1], timeout=wrong),
    "quiet": lambda client, wrong: list(client.recv([1]).messages(quiet=wrong)),
    "seconds": lambda client, wrong: list(client.recv([1]).messages(seconds=wrong)),
}


@each_wrong
@pytest.mark.parametrize("call", CALLS)
def test_the_error_is_named(call: str, wrong: Any) -> None:
    """The error contains the given value, and for a timedelta the conversion."""
    client = Client("127.0.0.1:1", topology="t", max_pending_messages=1)
    client.try_send(1, b"x")
    try:
        with pytest.raises(ConfigError, match="is a number of seconds") as told:
            CALLS[call](client, wrong)
    finally:
        client.close(0)
    assert ("total_seconds()" in str(told.value)) == isinstance(wrong, timedelta)


def test_numbers_are_seconds() -> None:
    """Integers, fractions and infinity are seconds; None selects the setting."""
    assert [check_timeout(each) for each in (None, 0, 2.5, math.inf)] == [None, 0.0, 2.5, math.inf]
    assert SessionSettings(flush_timeout_seconds=7).flush_timeout(None) == 7
