"""How often something may be logged that others can cause as often as they like."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable
from typing import ClassVar

_MOST_KINDS = 1000
_MOST_LINES = 100


class LogRate:
    """Lets each kind of event through once a minute, and counts those between. Not thread-safe.

    Of all kinds together, a hundred lines a minute: who makes up kinds, as with one address after another,
    fills no log either. quiet_seconds: what a minute is to all of the process; whoever debugs may change it.
    """

    QUIET_SECONDS: ClassVar[float] = 60.0
    quiet_seconds: ClassVar[float] = QUIET_SECONDS

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._logged: dict[Hashable, float] = {}
        self._since: dict[Hashable, int] = {}
        self._minute = -math.inf
        self._lines = 0

    def due(self, kind: Hashable, count: int = 1) -> int:
        """Return how many there were since the last line of this kind; 0: write no line now."""
        now = self._clock()
        total = self._since.pop(kind, 0) + count
        if now - self._logged.get(kind, -math.inf) < self.quiet_seconds or not self._has_room(now):
            if len(self._since) >= _MOST_KINDS:
                del self._since[next(iter(self._since))]
            self._since[kind] = total  # for the next line of this kind
            return 0
        self._logged.pop(kind, None)
        if len(self._logged) >= _MOST_KINDS:
            oldest = next(iter(self._logged))
            del self._logged[oldest]
            self._since.pop(oldest, None)
        self._logged[kind] = now
        return total

    def _has_room(self, now: float) -> bool:
        if now - self._minute >= self.quiet_seconds:
            self._minute, self._lines = now, 0
        self._lines += 1
        return self._lines <= _MOST_LINES
