"""When a topology over several processes is over. Pure: who coordinates asks, and hands the answers in.

Source: the four-counter method of F. Mattern, "Algorithms for distributed termination detection", Distributed
Computing 2 (1987). Each process is asked in two waves, the second after all of the first have answered. If
all were at rest in the first, and what the second says was sent is what the first says had been taken, then
nothing was on the way at the end of the first, and nobody can become active again.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from tuplewire.errors import ConfigError, TuplewireError


@dataclass(frozen=True, slots=True)
class Failure:
    """The error by which a process has failed, as text. traceback: with that of the user's code."""

    summary: str
    traceback: str

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """Describe an error, with its causes."""
        return cls(str(error), "".join(traceback.format_exception(error)))


class ProcessFailedError(TuplewireError):
    """A process of a topology has failed; the message says by what, a note has the traceback there."""

    def __init__(self, process: str, failure: Failure) -> None:
        super().__init__(f"{process} has failed: {failure.summary}")
        self.process = process
        self.failure = failure
        self.add_note(f"In {process}:\n{failure.traceback.rstrip()}")


@dataclass(frozen=True, slots=True)
class ProcessReport:
    """What one process says of itself, all at one moment.

    at_rest: no tuple is queued or being executed there, and its spouts are exhausted, or inactive. sent:
    tuples handed to the link so far. taken: those taken from it, and those that will never arrive.
    """

    at_rest: bool
    sent: int
    taken: int
    failure: Failure | None = None


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
