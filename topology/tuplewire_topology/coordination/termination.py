"""Detects the end of a topology in several processes, as pure state. Design: docs/design/acking.md.

Each process reports in two waves, the second after all reports of the first. Suppose that all processes were
at rest in the first wave, and that the total sent in the second equals the total received in the first. Then
no tuple was in flight at the end of the first wave, and no process can become active again. Source: the
four-counter method of F. Mattern, "Algorithms for distributed termination detection", Distributed Computing 2
(1987).
"""

from __future__ import annotations

from tuplewire.errors import TuplewireError
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

    Processes have the numbers, or ranks, from 0. Requests must have the number `wave`. Only the first report
    of each process with this number counts. `missing` has the processes without one.

    A restarted process loses its counters. Then use a new object with exact=False: the topology has finished
    if all processes are at rest in two waves with equal counts. This is right if a process is at rest only
    once its messages have arrived, as in a local cluster. Otherwise, wait between waves; it may then be wrong
    about tuples without acking.
    """

    def __init__(self, ranks: int, *, exact: bool = True) -> None:
        self.wave = 1
        self.over = not ranks
        self.exact = exact
        self._ranks = ranks
        self.missing = set(range(ranks))
        self._reports: dict[int, ProcessReport] = {}
        self._before: dict[int, ProcessReport] | None = None
        """The reports of the previous wave, if all processes were at rest."""

    def take(self, rank: int, wave: int, report: ProcessReport) -> bool:
        """Apply a report that a process made for a request. Return True if the topology has finished."""
        if wave == self.wave and rank in self.missing:  # a repeated request may give a second report
            self.missing.remove(rank)
            self._reports[rank] = report
            if not self.missing:
                self._close_wave()
        return self.over

    @property
    def at_rest(self) -> bool:
        """True if all processes were at rest in the previous wave."""
        return self._before is not None

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
        if not self.over:
            self.missing = set(range(self._ranks))
