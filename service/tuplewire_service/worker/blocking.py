"""Who blocks whom: for how long each task has made others wait, and where.

Source: Heron's `__time_spent_back_pressure_by_compid`.
"""

from __future__ import annotations

from collections.abc import Iterable

from tuplewire_service.messaging.reception import OTHER

LOCAL = "local"
"""Where a task blocks whose queue is here."""

_Seconds = dict[tuple[str, str], float]


class Blocking:
    """Seconds by task and place, looked at now and then. At most `limit` pairs have numbers of their own.

    First come, first kept: a pair never changes between its own number and the common one.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._seconds: _Seconds = {}

    def look(self, blocked: Iterable[tuple[int, str]], elapsed: float) -> None:
        """Add the time since the last look to what blocks now."""
        seconds = self._seconds
        for task, where in blocked:
            pair = (str(task), where)
            if pair not in seconds and len(seconds) >= self._limit:
                pair = (OTHER, OTHER)
            seconds[pair] = seconds.get(pair, 0.0) + elapsed

    def seconds(self) -> _Seconds:
        """Return the seconds by (task, where)."""
        return self._seconds.copy()
