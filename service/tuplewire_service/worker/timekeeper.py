"""The use of a worker's time: states of its loop, tasks that block others, durations of messages.

Used by worker.py and the metrics. Owns the time counters. Call only from the event loop. Source: Flink's
busy, idle and backpressured times (`busyTimeMsPerSecond`), here for a whole worker and by cause; Heron's
`__time_spent_back_pressure_by_compid`. Design: docs/design/status.md (time states).
"""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tuplewire.session.durations import BOUNDS, Durations
from tuplewire.session.pressure import BLOCKED_AFTER_SECONDS
from tuplewire.wire import control_pb2 as pb
from tuplewire_service.messaging.reception import OTHER
from tuplewire_service.worker.assignment import Assignment
from tuplewire_service.worker.router import Router
from tuplewire_service.worker.routing_table import LOCAL
from tuplewire_service.worker.servers import Servers

_SAMPLE_SECONDS = 0.25
_MAX_PROBES = 1000
_SPAN_SECONDS = 5.0


class TimeState(enum.StrEnum):
    """The activity of a worker. It waits in all states except the first; the first that applies counts."""

    BUSY = "busy"
    """Its event loop works, or waits for a processor."""
    BACKPRESSURED_QUEUE = "backpressured_queue"
    """A sender has used up its window for a local task: the task's consumer is slow."""
    BACKPRESSURED_SOCKET = "backpressured_socket"
    """Messages wait for a worker whose connection cannot send: it is down, its socket is full, or the maximum
    number of unacknowledged frames is in flight.
    """
    BACKPRESSURED_CREDIT = "backpressured_credit"
    """Messages, here or at a sender, wait for credit for a task of another worker."""
    IDLE = "idle"
    """Nothing is blocked."""


class StateSeconds:
    """Sums the waits of an event loop by cause; other time is busy. Call only from the event loop."""

    def __init__(self, now: float) -> None:
        self.idle_seconds = 0.0
        """The seconds of other waits, during which nothing was blocked."""
        self._started_at = now
        self._wait_seconds = dict.fromkeys(TimeState, 0.0)

    def record_wait(
        self, start: float, end: float, *, local_full: bool, remote_full: bool, blocked_since: float | None
    ) -> None:
        """Account for one wait of the loop, during which nothing changed.

        `local_full` and `remote_full`: a window for a local task, or a task of another worker, is used up.
        `blocked_since`: the time since which a connection cannot send; None if all can.
        """
        waited = self._wait_seconds
        # The causes have a fixed order, so the states add up to the age; see docs/design/status.md.
        if local_full:
            waited[TimeState.BACKPRESSURED_QUEUE] += end - start
            return
        state = TimeState.BACKPRESSURED_CREDIT if remote_full else TimeState.IDLE
        # A connection counts as blocked only after BLOCKED_AFTER_SECONDS.
        until = end if blocked_since is None else min(end, max(start, blocked_since + BLOCKED_AFTER_SECONDS))
        waited[state] += until - start
        waited[TimeState.BACKPRESSURED_SOCKET] += end - until

    def seconds(self, now: float) -> dict[str, float]:
        """Return the seconds in each state since the start; their sum is the elapsed time."""
        state_seconds = {state.value: waited for state, waited in self._wait_seconds.items()}
        state_seconds[TimeState.IDLE] += self.idle_seconds
        state_seconds[TimeState.BUSY] = now - self._started_at - sum(state_seconds.values())
        return state_seconds


@dataclass(eq=False)
class BlockingTimes:
    """Seconds that each task has blocked others, by task and place, sampled by add().

    At most `limit` pairs have a separate number. They keep it until retain_only() forgets them, so a pair
    never changes between its own number and the common one.
    """

    limit: int
    seconds: dict[tuple[str, str], float] = field(default_factory=dict)
    """The seconds by (task, place)."""
    _is_removed: Callable[[int, str], bool] = lambda _task, _where: False

    def add(self, blocking: Iterable[tuple[int, str]], elapsed: float) -> None:
        """Add the seconds since the last sample to each task and place that blocks now."""
        seconds = self.seconds
        for task, place in blocking:
            # No later call would forget a removed task or place.
            if self._is_removed(task, place):
                continue
            pair = (str(task), place)
            if pair not in seconds and len(seconds) >= self.limit:
                pair = (OTHER, OTHER)
            seconds[pair] = seconds.get(pair, 0.0) + elapsed

    def retain_only(self, tasks: Container[int], places: Container[str]) -> None:
        """Forget all pairs except of these tasks and places; the common number stays."""
        self._is_removed = lambda task, place: task not in tasks or place not in places
        for pair in [each for each in self.seconds if each != (OTHER, OTHER)]:
            task, place = pair
            if self._is_removed(int(task), place):
                del self.seconds[pair]


@dataclass(frozen=True, slots=True)
class WorkerTotals:
    """The counts of a worker up to a time, or within an interval."""

    seconds: float
    """The time, or the length of the interval."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """The accepted, acknowledged and dropped messages."""
    state_seconds: Mapping[str, float] = field(default_factory=dict)
    blocking_seconds: Mapping[tuple[str, str], float] = field(default_factory=dict)

    def increase_since(self, before: WorkerTotals) -> WorkerTotals:
        """Return the increase since earlier totals."""
        return WorkerTotals(
            self.seconds - before.seconds,
            _increase(before.counts, self.counts),
            _increase(before.state_seconds, self.state_seconds),
            _increase(before.blocking_seconds, self.blocking_seconds),
        )


def _increase(before: Mapping[Any, Any], now: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the increase of each number that has grown; a forgotten number restarts at 0."""
    return {key: value - before.get(key, 0) for key, value in now.items() if value > before.get(key, 0)}


class LoopLag:
    """The delay of due callbacks in an event loop. The caller provides the clock.

    After a block of two seconds, one of several overdue probes runs. Each counts, so a rare block is visible.
    """

    def __init__(self, now: float) -> None:
        self.delays = Durations()
        self._next_probe = now + _SAMPLE_SECONDS

    def probe(self, now: float) -> float:
        """Record that the loop runs the probe now; return the seconds until the next one."""
        delay = now - self._next_probe
        probes = int(max(0.0, delay) / _SAMPLE_SECONDS) + 1
        # One probe runs for all overdue ones, but each counts.
        for missed in range(min(probes, _MAX_PROBES)):
            self.delays.add(delay - missed * _SAMPLE_SECONDS)
        self._next_probe += probes * _SAMPLE_SECONDS
        return self._next_probe - now


class Timekeeper:
    """Measures the time use of a worker, by samples of its parts. Call only from the event loop."""

    def __init__(self, router: Router, servers: Servers, blocking_limit: int) -> None:
        self._router = router
        self._servers = servers
        self._clock = asyncio.get_running_loop().time
        now = self._clock()
        self._states = StateSeconds(now)
        self._blocking = BlockingTimes(blocking_limit)
        self._lag = LoopLag(now)
        self._sampled_at = now
        self._recent_totals = deque([self._totals(now)], maxlen=2)
        """Recent totals. The older one is one to two times _SPAN_SECONDS old, after the first two spans."""

    def record_wait(self, start: float, end: float) -> None:
        """Account for a wait of the loop; see EventLoopThread.set_wait_listener()."""
        pressure, servers = self._router.pressure, self._servers
        blocked = pressure.waiting_flows or pressure.blocked_connections or any(servers.blocked_by_server)
        if not blocked:  # nearly always
            self._states.idle_seconds += end - start
            return
        # Of each server, the task for which a sender has lacked credit longest; it is the first one.
        longest = [next(iter(tasks)) for tasks in servers.blocked_by_server if tasks]
        local = {self._router.place_of(task) == LOCAL for task in longest}
        # Programs also send messages for tasks of other workers through this one.
        other = False in local or pressure.waiting_flows > 0
        since = pressure.paused_since
        self._states.record_wait(start, end, local_full=True in local, remote_full=other, blocked_since=since)

    def on_assignment(self, assignment: Assignment) -> None:
        """Forget the blocking times of tasks and workers outside the assignment."""
        places = {LOCAL, *(each.worker_id for each in assignment.workers)}
        self._blocking.retain_only(assignment.owner_by_task, places)

    async def sample_periodically(self) -> None:
        """Sample the delay of the loop and the blocking tasks four times a second until cancelled."""
        while True:
            now = self._clock()
            blocked = {(task, self._router.place_of(task)) for task in self._servers.tasks_without_credit()}
            blocked.update(self._router.connections.blocked_tasks())
            self._blocking.add(blocked, now - self._sampled_at)
            self._sampled_at = now
            if now - self._recent_totals[-1].seconds >= _SPAN_SECONDS:
                self._recent_totals.append(self._totals(now))
            await asyncio.sleep(self._lag.probe(now))

    def _totals(self, now: float) -> WorkerTotals:
        ledger = self._router.ledger()
        counts = {"accepted": ledger.accepted, "acknowledged": ledger.acknowledged}
        counts["dropped"] = sum(ledger.dropped.values())
        return WorkerTotals(now, counts, self._states.seconds(now), self._blocking.seconds.copy())

    @property
    def recent_blocking_seconds(self) -> Mapping[tuple[str, str], float]:
        """Recent seconds that tasks have blocked others, by (task, place)."""
        return self._totals(self._clock()).increase_since(self._recent_totals[0]).blocking_seconds

    def add_to(self, status: pb.GetStatusResponse) -> None:
        """Add all times to a worker's status, with the tasks that block most first."""
        totals = self._totals(self._clock())
        recent = totals.increase_since(self._recent_totals[0])
        status.state_seconds.update(totals.state_seconds)
        status.recent.CopyFrom(pb.RecentCounts(state_seconds=recent.state_seconds, **recent.counts))
        status.recent.interval_seconds = recent.seconds
        by_place = recent.blocking_seconds
        blocking = ((by_place.get(at, 0.0), took, *at) for at, took in totals.blocking_seconds.items())
        for recently, took, task, place in sorted(blocking, reverse=True):
            status.blocking.add(task=task, place=place, seconds=took, recent_seconds=recently)
        status.queue_wait.CopyFrom(_latency(self._router.queues.queue_wait))
        status.send_to_ack.CopyFrom(_latency(self._router.pressure.send_to_ack))
        status.end_to_end.CopyFrom(_latency(self._router.end_to_end))
        status.loop_lag.CopyFrom(_latency(self._lag.delays))


def _latency(durations: Durations) -> pb.Latency:
    exemplars = {bucket: pb.Exemplar(**asdict(each)) for bucket, each in durations.exemplars.items()}
    return pb.Latency(
        bound_seconds=BOUNDS, counts=durations.counts, sum_seconds=durations.seconds, exemplars=exemplars
    )
