"""What receivers say of their tasks' load, for as long as that holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


class ReportedLoads:
    """The last report of each task; one that is not repeated expires. Source: Storm's `LoadMapping`."""

    __slots__ = ("_expires_seconds", "_loads")

    def __init__(self, expires_seconds: float) -> None:
        self._expires_seconds = expires_seconds
        self._loads: dict[int, tuple[float, float]] = {}

    def take(self, loads: Mapping[int, float], now: float) -> None:
        """Take a report in. loads: 0 (idle) to 1 (full), by task. now: seconds, of any clock."""
        self._loads.update((task, (load, now)) for task, load in loads.items())

    def of(self, tasks: Iterable[int], now: float) -> dict[int, float]:
        """Return the loads of those tasks of which a report still holds."""
        since = now - self._expires_seconds
        return {
            task: self._loads[task][0]
            for task in tasks
            if task in self._loads and self._loads[task][1] > since
        }
