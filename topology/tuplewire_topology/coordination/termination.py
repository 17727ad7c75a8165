"""When a topology over several processes is over.

This is pure: who coordinates asks, and hands the answers in. Source: the four-counter method of F.
Mattern, "Algorithms for distributed termination detection", Distributed Computing 2 (1987). Each process is
asked in two waves, the second after all of the first have answered. Suppose that all were at rest in
the first, and that the second says as much was sent as the first says had been taken. Then nothing was on the
way at the end of the first, and nobody can become active again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple
from typing import Any

from tuplewire.errors import ConfigError, TuplewireError
from tuplewire_topology.running.idle import Failure, ProcessReport


class ProcessFailedError(TuplewireError):
    """A process of a topology has failed; the message says by what, a note has the traceback there."""

    def __init__(self, process: str, failure: Failure) -> None:
        super().__init__(f"{process} has failed: {failure.summary}")
        self.process = process
        self.failure = failure
        self.add_note(f"In {process}:\n{failure.traceback.rstrip()}")


class Termination:
    """Takes each process's reports, and says when the topology is over. Not thread-safe.

    wave: the number to ask with. A report counts for the wave in force when the process made it, and only
    the first of each process counts.

    What it goes by ends with a process. Once one has been started again, and with it what was on the way has
    been lost or is counted twice, ask with a new object that is not exact: it says over when all were at rest
    in two waves and no count has changed between, and whoever asks waits a while between the waves. It may
    then be wrong about tuples that nobody follows.
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
        """The wave before, if all were at rest in it."""

    def take(self, process: str, wave: int, report: ProcessReport) -> bool:
        """Take a report that a process made after it was asked with this wave; return whether it is over.

        Raises ProcessFailedError for the report of a failure, and ConfigError for an unknown process.
        """
        if process not in self._processes:
            known = ", ".join(map(repr, sorted(self._processes)))
            raise ConfigError(f"{process!r} is no process of this topology; they are {known}")
        if report.failure is not None:
            raise ProcessFailedError(process, report.failure)
        if wave == self.wave and not self.over:
            self._reports.setdefault(process, report)
            if len(self._reports) == len(self._processes):
                self._close_wave()
        return self.over

    def missing(self) -> list[str]:
        """Return the processes that have not answered in this wave."""
        return sorted(self._processes - self._reports.keys())

    def _close_wave(self) -> None:
        reports, self._reports = self._reports, {}
        at_rest = all(report.at_rest for report in reports.values())
        if self._before is not None:
            if self.exact:
                taken = sum(report.taken for report in self._before.values())
                self.over = taken == sum(report.sent for report in reports.values())
            else:
                self.over = self._before == reports
        self._before = reports if at_rest else None
        self.wave += 1


def from_report(report: ProcessReport) -> list[Any]:
    """Return a report as values."""
    return list(astuple(report))


def to_report(values: Sequence[Any]) -> ProcessReport:
    """Return the report that from_report was given."""
    at_rest, sent, taken, failure = values
    return ProcessReport(at_rest, sent, taken, failure and Failure(*failure))
