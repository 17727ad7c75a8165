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
from tuplewire_topology.running.executor_group import ExecutorGroup
from tuplewire_topology.running.statistics import ProcessReport
from tuplewire_topology.serial.serializer import from_lists

_MIN_WAVE_SECONDS = 0.005
_MAX_WAVE_SECONDS = 0.1
_MIN_RESTARTED_WAVE_SECONDS = 1.0
"""The minimum time between waves after a restart. Two equal reports at rest then end the topology."""
_PROGRESS_SECONDS = 1.0
REPORT_TIMEOUT_SECONDS = 120.0
"""The time limit for reports. It is long, because the user's code may hold the interpreter."""


class TaskUnresponsiveError(TuplewireError):
    """A worker does not respond. On Spark, the worker is a PySpark task; Spark runs the stage again."""


@dataclass(frozen=True, slots=True)
class Order:
    """A control message for all workers or, if its kind is PROGRESS, for the submitter."""

    kind: ControlKind
    values: tuple[Any, ...] = ()

    def execute(self, group: ExecutorGroup) -> ProcessReport | None:
        """Execute the order in a worker of this process. GET_REPORT returns a report or raises a failure."""
        match self.kind:
            case ControlKind.SET_STATE:
                group.set_active(active=self.values[0])
            case ControlKind.FINAL_TICK:
                group.send_final_tick(self.values)
            case ControlKind.GET_REPORT:
                (wave,) = self.values
                report = group.report(new_epoch=wave == 1)
                group.raise_if_failed()
                return report
        return None


class TerminationDetector:
    """Collects the reports of all processes, and decides when the topology has finished. Not thread-safe.

    Each process reports in two waves, the second after all reports of the first. Suppose that all processes
    were at rest in the first wave, and that the total sent in the second equals the total received in the
    first. Then no tuple was in flight at the end of the first wave, and no process can become active again.
    Source: the four-counter method of F. Mattern, "Algorithms for distributed termination detection",
    Distributed Computing 2 (1987).

    Processes have the numbers, or ranks, from 0. Requests must have the number `wave`. Only the first report
    of each process with this number counts. `unreported` has the processes without one.

    A restarted process loses its counters. Then use a new object with exact=False: the topology has finished
    if all processes are at rest in two waves with equal counts. This is right if a process is at rest only
    once its messages have arrived, as in a local cluster. Otherwise, wait between waves; it may then be wrong
    about tuples without acking.
    """

    def __init__(self, n_ranks: int, *, exact: bool = True) -> None:
        self.wave = 1
        self.is_finished = not n_ranks
        self.exact = exact
        self._n_ranks = n_ranks
        self.unreported = set(range(n_ranks))
        self._reports: dict[int, ProcessReport] = {}
        self._previous_reports: dict[int, ProcessReport] | None = None
        """The reports of the previous wave, if all processes were at rest."""

    def add_report(self, rank: int, wave: int, report: ProcessReport) -> bool:
        """Apply a report that a process made for a request. Return True if the topology has finished."""
        if wave == self.wave and rank in self.unreported:  # a repeated request may give a second report
            self.unreported.remove(rank)
            self._reports[rank] = report
            if not self.unreported:
                self._close_wave()
        return self.is_finished

    @property
    def was_idle(self) -> bool:
        """True if all processes were at rest in the previous wave."""
        return self._previous_reports is not None

    def _close_wave(self) -> None:
        reports, self._reports = self._reports, {}
        if self._previous_reports is not None:
            if self.exact:  # the second wave does not have to be at rest: equal sums are sufficient
                received = sum(report.received for report in self._previous_reports.values())
                self.is_finished = received == sum(report.sent for report in reports.values())
            else:  # after a restart, the sums never match, so the reports must repeat
                self.is_finished = self._previous_reports == reports
        self._previous_reports = reports if all(report.is_idle for report in reports.values()) else None
        self.wave += 1
        if not self.is_finished:
            self.unreported = set(range(self._n_ranks))


class Coordinator:
    """Controls a topology until it has finished. Not thread-safe. Times are monotonic, in seconds.

    Activates the spouts when all workers are ready, and requests reports in waves until the topology has
    finished (see TerminationDetector). Each level of bolts then gets its last tick and further waves, before
    the close. While the submitter has deactivated the spouts, there are no waves. A stop deactivates spouts
    for good, as if they were exhausted. A failure aborts all tasks. `is_done` is True after the last order.
    """

    def __init__(
        self,
        n_ranks: int,
        now: float,
        tick_levels: Iterable[Sequence[str]] = (),
        *,
        already_open: bool = False,
        exact: bool = True,
    ) -> None:
        """Coordinate workers (on Spark: PySpark tasks) with the numbers, or ranks, from 0.

        tick_levels: the bolts that get their last tick together. already_open: the tasks are open, and the
        caller activates and deactivates the spouts. exact: see TerminationDetector.
        """
        self._n_ranks = n_ranks
        self._tick_levels = iter(tick_levels)
        self._unready: set[int] = set() if already_open else set(range(n_ranks))
        """The ranks with tasks that are not open yet."""
        self.is_done = False
        self._min_interval = 0.0
        self._detector = TerminationDetector(n_ranks, exact=exact)
        self._requested_wave = 0
        self._wave_interval = _MIN_WAVE_SECONDS
        self._next_wave_at = now
        self._last_wave_at = now
        self._last_progress_at = now
        self._stop_keeps_output: bool | None = None
        """None: not stopped; False: the output is discarded."""
        self._active = True
        self._sent_state = (already_open, True)
        """The values of the last SET_STATE."""
        self._failed = False
        self._counts_by_rank: dict[int, tuple[int, int, int]] = {}
        """The emitted and executed tuples, and the dead letters."""

    def handle_message(self, message: ControlMessage, now: float) -> None:
        """Apply a control message that was sent to the coordinator."""
        match message.kind:
            case ControlKind.READY:
                self._unready.discard(message.rank)
                self._last_wave_at = now
            case ControlKind.REPORT:
                wave, report, *counts = message.values
                self._counts_by_rank[message.rank] = (counts[0], counts[1], counts[2])
                self.handle_report(message.rank, wave, from_lists(ProcessReport, report), now)
            case ControlKind.STATE:
                self._active, self._stop_keeps_output = message.values
                self._wave_interval = _MIN_WAVE_SECONDS  # the end may be near
            case _:
                raise TuplewireError(f"the coordinator accepts no message of the kind {message.kind}")

    def handle_report(self, rank: int, wave: int, report: ProcessReport, now: float) -> None:
        """Apply a worker's report for a wave."""
        before, was_idle = self._detector.wave, self._detector.was_idle
        self._failed |= report.failure is not None
        self._detector.add_report(rank, wave, report)
        if self._detector.wave > before:
            self._last_wave_at = now
            self._next_wave_at = now + self._next_delay(was_idle=was_idle)

    def _next_delay(self, *, was_idle: bool) -> float:
        """Return a growing time; after the first wave at rest, the least, to confirm it; at the end, 0."""
        if self._detector.is_finished:
            return 0.0
        least = self._min_interval if self._detector.was_idle else 0.0  # a busy wave is not compared
        if self._detector.was_idle and not was_idle:
            return least
        pause, self._wave_interval = self._wave_interval, min(2 * self._wave_interval, _MAX_WAVE_SECONDS)
        return max(least, pause)

    def use_inexact_counts(self) -> None:
        """Detect the end without exact counts from now on: a worker has restarted and lost its counts."""
        if self._detector.exact:
            self._min_interval = _MIN_RESTARTED_WAVE_SECONDS
            self._restart_detection(exact=False)

    def _restart_detection(self, *, exact: bool) -> None:
        self._detector, self._requested_wave = TerminationDetector(self._n_ranks, exact=exact), 0
        self._wave_interval = _MIN_WAVE_SECONDS

    def next_orders(self, now: float) -> list[Order]:
        """Return the due orders; TaskUnresponsiveError if a wave takes over REPORT_TIMEOUT_SECONDS."""
        if self.is_done:
            return []
        if self._failed:
            self.is_done = True
            return [Order(ControlKind.ABORT)]
        orders = [] if self._unready else self._due_orders(now)
        if not self.is_done and now - self._last_wave_at > REPORT_TIMEOUT_SECONDS:
            missing = sorted(self._unready or self._detector.unreported)
            names = f"{', '.join(map(str, missing))} (on Spark: PySpark tasks)"
            text = f"no answer for {REPORT_TIMEOUT_SECONDS:g} s from worker(s) {names}; see their logs"
            raise TaskUnresponsiveError(text)
        return orders

    def _due_orders(self, now: float) -> list[Order]:
        orders: list[Order] = []
        state = (self._active and self._stop_keeps_output is None, self._stop_keeps_output is not False)
        if self._sent_state != state:
            self._sent_state = state
            orders.append(Order(ControlKind.SET_STATE, state))
        if self._detector.is_finished and not self._is_paused:
            level = next(self._tick_levels, None)
            if level is None:
                self.is_done = True
                return [*orders, self._progress(), Order(ControlKind.CLOSE)]
            # The last ticks may emit tuples, so detect termination from the start.
            self._restart_detection(exact=self._detector.exact)
            self._next_wave_at = now
            orders.append(Order(ControlKind.FINAL_TICK, tuple(level)))
        if self._is_paused:
            self._last_wave_at = now  # no reports are due
        elif self._requested_wave < self._detector.wave and now >= self._next_wave_at:
            self._requested_wave = self._detector.wave
            orders.append(Order(ControlKind.GET_REPORT, (self._requested_wave,)))
        if now - self._last_progress_at >= _PROGRESS_SECONDS:
            self._last_progress_at = now
            orders.append(self._progress())
        return orders

    @property
    def _is_paused(self) -> bool:
        """True while deactivated and not stopped: inactive spouts must not end the topology."""
        return not self._active and self._stop_keeps_output is None

    def _progress(self) -> Order:
        counts = self._counts_by_rank.values()
        return Order(ControlKind.PROGRESS, tuple(sum(each[index] for each in counts) for index in range(3)))

    def wait_seconds(self, now: float) -> float:
        """Return the seconds until the next order may be due without further messages."""
        if self._unready or self.is_done or self._is_paused or self._requested_wave >= self._detector.wave:
            return _PROGRESS_SECONDS
        return max(0.0, self._next_wave_at - now)
