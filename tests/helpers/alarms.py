"""Interruption of a call by an exception or a signal handler, at a moment that the test chooses."""

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
    """Stands for the exception of a user's Ctrl-C, which may be raised anywhere."""


def interrupt() -> None:
    """Raise the exception that stands for Ctrl-C."""
    raise Interrupted


OnAlarm = Callable[[Callable[[], object]], None]


def handle_alarm(action: Callable[[], object]) -> None:
    """Set the action of an alarm signal."""

    def handler(_: int, __: FrameType | None) -> None:
        action()

    signal.signal(signal.SIGALRM, handler)


def interrupted_at(step: int, call: Callable[[], object]) -> bool:
    """Interrupt a call before a step, an opcode of Tuplewire or asyncio. Return False if it ends earlier."""
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
