"""What interrupts a call in the middle: an exception, or a signal handler, at a moment of a test's choice."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType


class Interrupted(BaseException):
    """What a user's Ctrl-C is: an exception that may come anywhere."""


def interrupt() -> None:
    """Raise what Ctrl-C would."""
    raise Interrupted


OnAlarm = Callable[[Callable[[], object]], None]


def handle_alarm(action: Callable[[], object]) -> None:
    """Say what an alarm does."""

    def handler(_: int, __: FrameType | None) -> None:
        action()

    signal.signal(signal.SIGALRM, handler)
