"""What interrupts a call in the middle: an exception, or a signal handler, at a moment of a test's choice."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import tuplewire

_OURS = str(Path(tuplewire.__file__).parent)


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


def interrupted_at(step: int, call: Callable[[], object]) -> bool:
    """Interrupt a call before so many of its steps in Python's machine; False when it was over by then.

    A step is an operation in our own code, or in asyncio's, on this thread.
    """
    steps = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal steps
        name = frame.f_code.co_filename
        if not name.startswith(_OURS) and "/asyncio/" not in name:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            steps += 1
            if steps == step:
                raise Interrupted
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except Interrupted:
        return True
    finally:
        sys.settrace(before)
    return False
