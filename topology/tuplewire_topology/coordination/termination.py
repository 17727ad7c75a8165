"""Detects the end of a topology in several processes, as pure state. Design: docs/design/acking.md.

Each process reports in two waves, the second after all reports of the first. Suppose that all processes were
at rest in the first wave, and that the total sent in the second equals the total received in the first. Then
no tuple was in flight at the end of the first wave, and no process can become active again. Source: the
four-counter method of F. Mattern, "Algorithms for distributed termination detection", Distributed Computing 2
(1987).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple
from typing import Any

from tuplewire.errors import ConfigError, TuplewireError
from tuplewire_topology.running.idle import Failure, ProcessReport


class ProcessFailedError(TuplewireError):
    """A process of a topology has failed. The message has the error, and a note its traceback there."""

    def __init__(self, process: str, failure: Failure) -> None:
        super().__init__(f"{process} has failed: {failure.summary}")
        self.process = process
        self.failure = failure
        self.add_note(f"In {process}:\n{failure.traceback.rstrip()}")


class Termination:
    """Collects the reports of all processes, and decides when the topology has finished. Not thread-safe.

    Requests must have the number `wave`. Only the first report of each process with this number counts.

    A restarted process loses its counters. Then use a new object with exact=False: the topology has finished
    if all processes are at rest in two waves with equal counts. This is right if a process is at rest only
    once its messages have arrived, as in a local cluster. Otherwise, wait between waves; it may then be wrong
    about tuples without acking.
    """

    def __init__(self, processes: Iterable[str], *, exact: bool = True) -> None:
        self.wave = 1
        self.over = False
        self.exact = exact
        self._processes = frozenset(processes)
        if not self._processes:
            raise ConfigError("a topology that is to end needs at least one process; name them")
        self._reports: dict[str, ProcessReport] = {}
        self._before: dict[str, ProcessReport] | None = None
        """The reports of the previous wave, if all processes were at rest."""

    def take(self, process: str, wave: int, report: ProcessReport) -> bool:
        """Apply a report that a process made for a request. Return True if the topology has finished.

        Raises ProcessFailedError if the report has a failure, and ConfigError for an unknown process.
        """
        if process not in self._processes:
            known = ", ".join(map(repr, sorted(self._processes)))
            raise ConfigError(f"{process!r} is no process of this topology; they are {known}")
        if report.failure is not None:
            raise ProcessFailedError(process, report.failure)
        if wave == self.wave and not self.over:
            self._reports.setdefault(process, report)  # a repeated request may give a second report
            if len(self._reports) == len(self._processes):
                self._close_wave()
        return self.over

    @property
    def at_rest(self) -> bool:
        """True if all processes were at rest in the previous wave."""
        return self._before is not None

    def missing(self) -> list[str]:
        """Return the processes without a report in this wave."""
        return sorted(self._processes - self._reports.keys())

    def _close_wave(self) -> None:
        reports, self._reports = self._reports, {}
        at_rest = all(report.at_rest for report in reports.values())
        if self._before is not None:
            if self.exact:  # the second wave does not have to be at rest: equal sums are sufficient
                taken = sum(report.taken for report in self._before.values())
                self.over = taken == sum(report.sent for report in reports.values())
            else:
                self.over = self._before == reports  # sums do not match after a restart
        self._before = reports if at_rest else None
        self.wave += 1


def from_report(report: ProcessReport) -> list[Any]:
    """Return the fields of a report, for a control message."""
    return list(astuple(report))


def to_report(values: Sequence[Any]) -> ProcessReport:
    """Return the report with the fields of from_report()."""
    at_rest, sent, taken, failure = values
    return ProcessReport(at_rest, sent, taken, failure and Failure(*failure))
