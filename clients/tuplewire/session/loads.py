"""What receivers say of their tasks' load and congestion, for as long as that holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


class ReportedLoads:
    """The last report of each task; one that is not repeated expires. Source: Storm's `LoadMapping`."""

    __slots__ = ("_expires_seconds", "_loads")

    def __init__(self, expires_seconds: float) -> None:
        self._expires_seconds = expires_seconds
        self._loads: dict[int, tuple[float, float]] = {}

    def take(self, loads: Mapping[int, float], now: float) -> None:
        """Take in a report. loads: 0 (idle) to 1 (full), by task. now: seconds, of any clock."""
        self._loads.update((task, (load, now)) for task, load in loads.items())

    def of(self, tasks: Iterable[int], now: float) -> dict[int, float]:
        """Return the loads of these tasks, without those whose report has expired."""
        since = now - self._expires_seconds
        return {
            task: self._loads[task][0]
            for task in tasks
            if task in self._loads and self._loads[task][1] > since
        }


class ReportedCongestion:
    """The tasks that a receiver calls congested; one that it does not call so again expires.

    Source: Storm's `BackPressureStatus`.
    """

    __slots__ = ("_expires_seconds", "_told")

    def __init__(self, expires_seconds: float) -> None:
        self._expires_seconds = expires_seconds
        self._told: dict[int, float] = {}

    def take(self, congested: Iterable[int], relieved: Iterable[int], now: float) -> None:
        """Take a report in. now: seconds, of any clock."""
        self._told.update(dict.fromkeys(congested, now))
        for task in relieved:
            self._told.pop(task, None)

    def tasks(self, now: float) -> frozenset[int]:
        """Return the tasks of which a report still holds."""
        since = now - self._expires_seconds
        return frozenset(task for task, told in list(self._told.items()) if told > since)
