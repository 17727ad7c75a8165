"""What receivers say of their tasks' load and congestion, for as long as that holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


class ReportedLoads:
    """The last report of each task, its load or (1.0) that it is congested; one that is not repeated expires.

    Source: Storm's `LoadMapping` and `BackPressureStatus`.
    """

    def __init__(self, expires_seconds: float) -> None:
        self._expires_seconds = expires_seconds
        self._reports: dict[int, tuple[float, float]] = {}

    def take(self, reports: Mapping[int, float], now: float) -> None:
        """Take in a report. reports: 0 (idle) to 1 (full), by task. now: seconds, of any clock."""
        self._reports.update((task, (value, now)) for task, value in reports.items())

    def forget(self, tasks: Iterable[int]) -> None:
        """Take back what was reported of these tasks."""
        for task in tasks:
            self._reports.pop(task, None)

    def tasks(self, now: float) -> frozenset[int]:
        """Return the tasks of which a report still holds."""
        since = now - self._expires_seconds
        return frozenset(task for task, (_, told) in list(self._reports.items()) if told > since)

    def of(self, tasks: Iterable[int], now: float) -> dict[int, float]:
        """Return the last reports of these tasks, without those that have expired."""
        since = now - self._expires_seconds
        reports = self._reports
        return {task: reports[task][0] for task in tasks if task in reports and reports[task][1] > since}
