"""The coordinator of a topology, as pure state: reports and control messages in, orders out.

Used by clusters, which call their workers, and by the first PySpark task, which sends messages. Owns the
topology's phase and its termination detection. Not thread-safe. Design: docs/design/acking.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tuplewire.errors import TuplewireError
from tuplewire_topology.coordination.control_channel import ControlKind, ControlMessage
from tuplewire_topology.running.executor_worker import ExecutorWorker
from tuplewire_topology.running.statistics import ProcessReport
from tuplewire_topology.serial.serializer import from_values

_FIRST_PAUSE_SECONDS = 0.005
_PAUSE_SECONDS = 0.1
_QUIET_SECONDS = 1.0
"""The time between waves after a restart. Two equal reports at rest then end the topology."""
_PROGRESS_SECONDS = 1.0
SILENCE_SECONDS = 120.0
"""The time limit for reports. It is long, because the user's code may hold the interpreter."""


class TaskUnresponsiveError(TuplewireError):
    """A PySpark task does not respond. Spark must run the stage again."""


@dataclass(frozen=True, slots=True)
class Order:
    """A control message for all workers or, if its kind is PROGRESS, for the submitter."""

    kind: ControlKind
    values: tuple[Any, ...] = ()

    def execute(self, worker: ExecutorWorker) -> ProcessReport | None:
        """Execute the order in a worker of this process. For ASK, return its report, or raise its failure."""
        match self.kind:
            case ControlKind.SWITCH:
                worker.switch(active=self.values[0])
            case ControlKind.TICK:
                worker.tick(self.values)
            case ControlKind.ASK:
                (wave,) = self.values
                report = worker.report(new_epoch=wave == 1)
                worker.check()
                return report
        return None


class Termination:
    """Collects the reports of all processes, and decides when the topology has finished. Not thread-safe.

    Each process reports in two waves, the second after all reports of the first. Suppose that all processes
    were at rest in the first wave, and that the total sent in the second equals the total received in the
    first. Then no tuple was in flight at the end of the first wave, and no process can become active again.
    Source: the four-counter method of F. Mattern, "Algorithms for distributed termination detection",
    Distributed Computing 2 (1987).

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


class Coordinator:
    """Controls a topology until it has finished. Not thread-safe. Times are monotonic, in seconds.

    Activates the spouts when all workers are ready, and requests reports in waves until the topology has
    finished (see Termination). Each level of bolts then gets its last tick and further waves, before the
    close. While the submitter has deactivated the spouts, there are no waves. A stop deactivates spouts for
    good, as if they were exhausted. A failure aborts all tasks. `over` is True after the last order.
    """

    def __init__(
        self,
        ranks: int,
        now: float,
        tick_levels: Iterable[Sequence[str]] = (),
        *,
        opened: bool = False,
        exact: bool = True,
    ) -> None:
        """Coordinate workers (on Spark: PySpark tasks) with the numbers, or ranks, from 0.

        tick_levels: the bolts that get their last tick together. opened: the tasks are open, and the
        caller activates and deactivates the spouts. exact: see Termination.
        """
        self._ranks = ranks
        self._tick_levels = iter(tick_levels)
        self._opening: set[int] = set() if opened else set(range(ranks))
        """The ranks with tasks that are not open yet."""
        self.over = False
        self._quiet = 0.0
        self._termination = Termination(ranks, exact=exact)
        self._rested = False
        self._asked = 0
        self._pause = _FIRST_PAUSE_SECONDS
        self._ask_at = now
        self._heard = now
        self._told = now
        self._stop: bool | None = None
        self._active = True
        self._switched = (opened, True)
        """The values of the last SWITCH."""
        self._failed = False
        self._counts: dict[int, tuple[int, int, int]] = {}

    def take(self, message: ControlMessage, now: float) -> None:
        """Apply a control message that was sent to the coordinator."""
        match message.kind:
            case ControlKind.READY:
                self._opening.discard(message.rank)
                self._heard = now
            case ControlKind.REPORT:
                wave, report, *counts = message.values
                self._counts[message.rank] = (counts[0], counts[1], counts[2])
                self.take_report(message.rank, wave, from_values(ProcessReport, report), now)
            case ControlKind.STATE:
                self._active, self._stop = message.values
                self._pause = _FIRST_PAUSE_SECONDS  # the end may be near
            case _:
                raise TuplewireError(f"the coordinator accepts no message of the kind {message.kind}")

    def take_report(self, rank: int, wave: int, report: ProcessReport, now: float) -> None:
        """Apply a worker's report for a wave."""
        before = self._termination.wave
        self._failed |= report.failure is not None
        self._termination.take(rank, wave, report)
        if self._termination.wave > before:
            self._heard = now
            self._ask_at = now + max(self._next_pause(), self._quiet)

    def _next_pause(self) -> float:
        """Return 0 after the first wave at rest, to confirm it; else more and more time."""
        rested, self._rested = self._rested, self._termination.at_rest
        if self._rested and not rested:
            return 0.0
        pause, self._pause = self._pause, min(2 * self._pause, _PAUSE_SECONDS)
        return pause

    def forget_counts(self) -> None:
        """Detect the end without exact counts from now on: a worker has restarted and lost its counts."""
        if self._termination.exact:
            self._quiet = _QUIET_SECONDS
            self._ask_anew(exact=False)

    def _ask_anew(self, *, exact: bool) -> None:
        self._termination, self._asked = Termination(self._ranks, exact=exact), 0
        self._pause, self._rested = _FIRST_PAUSE_SECONDS, False

    def orders(self, now: float) -> list[Order]:
        """Return the due orders. Raises TaskUnresponsiveError after SILENCE_SECONDS without a report."""
        if self.over:
            return []
        if self._failed:
            self.over = True
            return [Order(ControlKind.ABORT)]
        orders = [] if self._opening else self._go_on(now)
        if not self.over and now - self._heard > SILENCE_SECONDS:
            missing = sorted(self._opening or self._termination.missing)
            names = ", ".join(f"PySpark task {rank}" for rank in missing)
            raise TaskUnresponsiveError(
                f"{names} has not answered for {SILENCE_SECONDS:g} s; see its executor's log"
            )
        return orders

    def _go_on(self, now: float) -> list[Order]:
        orders: list[Order] = []
        state = (self._active and self._stop is None, self._stop is not False)
        if self._switched != state:
            self._switched = state
            orders.append(Order(ControlKind.SWITCH, state))
        if self._termination.over and not self._is_paused:
            level = next(self._tick_levels, None)
            if level is None:
                self.over = True
                return [*orders, self._progress(), Order(ControlKind.CLOSE)]
            # The last ticks may emit tuples, so detect termination from the start.
            self._ask_anew(exact=self._termination.exact)
            self._ask_at = now
            orders.append(Order(ControlKind.TICK, tuple(level)))
        if self._is_paused:
            self._heard = now  # no reports are due
        elif self._asked < self._termination.wave and now >= self._ask_at:
            self._asked = self._termination.wave
            orders.append(Order(ControlKind.ASK, (self._asked,)))
        if now - self._told >= _PROGRESS_SECONDS:
            self._told = now
            orders.append(self._progress())
        return orders

    @property
    def _is_paused(self) -> bool:
        """True while deactivated and not stopped: inactive spouts must not end the topology."""
        return not self._active and self._stop is None

    def _progress(self) -> Order:
        counts = self._counts.values()
        return Order(ControlKind.PROGRESS, tuple(sum(each[of] for each in counts) for of in range(3)))

    def wait_seconds(self, now: float) -> float:
        """Return the seconds until the next order may be due without further messages."""
        if not (self._opening or self.over) and self._asked < self._termination.wave and not self._is_paused:
            return max(0.0, self._ask_at - now)
        return _PROGRESS_SECONDS
