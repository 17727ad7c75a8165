"""Rate limiting for log events that remote peers can trigger."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable
from typing import ClassVar

_MOST_KINDS = 1000
_MOST_LINES = 100


class LogRate:
    """Permits one line per minute for each kind of event, and counts suppressed events. Not thread-safe.

    All kinds together have at most 100 lines per minute, so a peer cannot fill the log with new kinds, such
    as addresses. `quiet_seconds` is the length of this minute for the whole process; change it for debugging.
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
        """Return the number of events since the last line of this kind; 0 if no line may be written now."""
        now = self._clock()
        total = self._since.pop(kind, 0) + count
        if now - self._logged.get(kind, -math.inf) < self.quiet_seconds or not self._has_room(now):
            # Peers choose the kinds, so the memory for them is bounded.
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
