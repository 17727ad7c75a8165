"""When a worker has come to rest, and when a topology over several processes is over.

The latter is pure: who coordinates asks, and hands the answers in. Source: the four-counter method of F.
Mattern, "Algorithms for distributed termination detection", Distributed Computing 2 (1987). Each process is
asked in two waves, the second after all of the first have answered. Suppose that all were at rest in
the first, and that the second says as much was sent as the first says had been taken. Then nothing was on the
way at the end of the first, and nobody can become active again.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass
from typing import Any, Self

from tuplewire.errors import ConfigError, TuplewireError


class IdleWatch:
    """Counts the tuples that are in a queue of a worker, or being executed there; thread-safe.

    A worker is idle when there are none, and every spout is inactive or exhausted.

    moved: notified of every change that may matter; the watches of several workers may share it. While it is
    held, none of them counts anything. epoch: the number of times that somebody began to wait. begun:
    everything that was ever counted: whoever reads the same twice knows that nothing was added. paused: to be
    set, from any thread, where nothing is to enter from outside.
    """

    def __init__(self, moved: threading.Condition | None = None) -> None:
        self.moved = moved or threading.Condition()
        self._present = 0
        self.epoch = 0
        self._handed = 0
        self._taken = 0
        self.begun = 0
        self.paused = False

    @property
    def empty(self) -> bool:
        """Whether there are no tuples now."""
        return not self._present

    def new_epoch(self) -> int:
        """Begin to wait: return the number that spouts are to be asked in."""
        self.epoch += 1
        return self.epoch

    def sent(self, tuples: int) -> None:
        """Count tuples, before they can be executed."""
        with self.moved:
            self._present += tuples
            self.begun += tuples

    def executed(self, tuples: int) -> None:
        """Take them off again, after what they have led to was counted."""
        with self.moved:
            self._present -= tuples
            if not self._present:
                self.moved.notify_all()

    def enter(self) -> bool:
        """Count one thing that comes from outside, as a tick does; False, and nothing, while paused."""
        with self.moved:
            if not self.paused:
                self.sent(1)
                return True
            return False

    def handed(self, tuples: int) -> None:
        """Count what goes to other processes, before it does."""
        with self.moved:
            self._handed += tuples
            self.begun += tuples

    def taken(self, tuples: int, *, lost: bool = False) -> None:
        """Count what comes from other processes; lost: there is nothing of it to execute."""
        with self.moved:
            self._taken += tuples
            self.begun += tuples
            if not lost:
                self._present += tuples

    def traffic(self, finished: Callable[[], bool]) -> tuple[bool, int, int]:
        """Return whether nothing is left to do here, what went to other processes, and what came from them.

        All three are of one moment. finished: whether every spout is inactive or exhausted.
        """
        with self.moved:
            return self._present == 0 and finished(), self._handed, self._taken

    def changed(self) -> None:
        """Have those who wait look again, as a spout has come to rest, or something has failed."""
        with self.moved:
            self.moved.notify_all()


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


def from_report(report: ProcessReport) -> list[Any]:
    """Return a report as values."""
    return list(astuple(report))


def to_report(values: Sequence[Any]) -> ProcessReport:
    """Return the report that from_report was given."""
    at_rest, sent, taken, failure = values
    return ProcessReport(at_rest, sent, taken, failure and Failure(*failure))
