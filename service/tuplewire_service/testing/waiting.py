"""Waiting for a condition, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

_Value = TypeVar("_Value")


def eventually(condition: Callable[[], _Value], timeout: float = 30.0, what: str = "") -> _Value:
    """Return what the condition returns as soon as that is true; AssertionError after so many seconds.

    what: names the condition in the error.
    """
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout} s: {what or condition}; last seen: {value!r}")
        time.sleep(0.005)
    return value
