"""What an executor's thread is doing, written by itself and read by others without a lock.

Source: the purpose of the heartbeats of Storm's executors; theirs say that the process lives, not that its
threads do.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import StrEnum


class Doing(StrEnum):
    """Where a thread is; the user's code has the names of its methods."""

    STARTING = "starting"
    WAITING = "waiting"
    SENDING = "sending"
    ENDED = "ended"
    OPEN = "open"
    PREPARE = "prepare"
    ACTIVATE = "activate"
    DEACTIVATE = "deactivate"
    NEXT_TUPLE = "next_tuple"
    ACK = "ack"
    FAIL = "fail"
    EXECUTE = "execute"
    CLOSE = "close"
    CLEANUP = "cleanup"


OURS = frozenset([Doing.STARTING, Doing.WAITING, Doing.SENDING, Doing.ENDED])
"""What is not the user's code."""


class Pulse:
    """Written by one thread at every step; an addition per tuple.

    task: whose turn it is. calls: how often the user's code was called. turned: when the loop last began
    anew, in seconds of the clock.
    """

    __slots__ = ("calls", "clock", "doing", "task", "turned")

    def __init__(self, task: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.task = task
        self.doing = Doing.STARTING
        self.calls = 0
        self.turned = clock()

    def turn(self) -> None:
        """Begin the loop anew."""
        self.turned = self.clock()

    def enter(self, task: int, doing: Doing) -> None:
        """Begin to call the user's code for a task."""
        self.task = task
        self.doing = doing
        self.calls += 1


class CallWatch:
    """Tells from looks at a pulse, every second or so, for how long it has been within one call.

    What it says is too little by the time between two looks at most.
    """

    def __init__(self, pulse: Pulse) -> None:
        self._pulse = pulse
        self._seen = (pulse.calls, pulse.doing)
        self._since = pulse.clock()

    def look(self) -> float:
        """Return for how many seconds one call of the user's code has been going on; 0 when none is."""
        pulse = self._pulse
        now, seen = pulse.clock(), (pulse.calls, pulse.doing)
        if seen != self._seen or seen[1] in OURS:
            self._seen, self._since = seen, now
        return now - self._since
