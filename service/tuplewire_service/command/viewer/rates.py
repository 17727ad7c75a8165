"""Samples of a worker, rates from two of its statuses, by its clock, and the tasks that block senders.

Used by the viewer and status_report.py. Owns no state. Thread-safe. Design: docs/design/status.md.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from tuplewire.wire import control_pb2 as pb

_LOCAL = "local"


def state_name(state: pb.WorkerState, *, inactive: bool = False) -> str:
    """Return `ready` for WORKER_STATE_READY; `ready, spouts inactive` if the topology is inactive."""
    return pb.WorkerState.Name(state).removeprefix("WORKER_STATE_").lower() + ", spouts inactive" * inactive


@dataclass(slots=True)
class WorkerSample:
    """A worker with its current and its previous status, or the problem if it did not answer."""

    worker: str
    address: str
    status: pb.GetStatusResponse | None = None
    previous: pb.GetStatusResponse | None = None
    problem: str = ""
    task_count: int = 0
    """The number of its tasks, by its last answer or the assignment."""
    answered_at: float = field(default_factory=time.monotonic)
    """The time of its last answer, or of the first request."""
    silent_seconds: float = 0.0
    """The time since then, if it did not answer the last request."""


class Interval:
    """The interval between two statuses of one process; empty after a restart or without an earlier one."""

    def __init__(self, before: pb.GetStatusResponse | None, now: pb.GetStatusResponse) -> None:
        same_process = before is not None and before.incarnation == now.incarnation
        self.previous = before if same_process and before is not None else pb.GetStatusResponse()
        self.seconds = _age(now) - _age(self.previous) if same_process else 0.0
        self._tasks = {(each.task, each.base_sequence): each for each in self.previous.tasks}
        self._all_listed = len(self.previous.tasks) >= self.previous.local_task_count

    def task_rates(self, task: pb.TaskStatus) -> tuple[float | None, float | None]:
        """Return the messages per second that a task received and that its consumer acknowledged, or None."""
        # A task that left and returned has a new base_sequence: its counts restarted at zero.
        then = self._tasks.get((task.task, task.base_sequence))
        if then is None:
            if not self._all_listed:  # the earlier status may have omitted the task
                return None, None
            then = pb.TaskStatus()
        return (
            self.rate(task.received_messages, then.received_messages),
            self.rate(task.acknowledged_messages, then.acknowledged_messages),
        )

    def rate(self, now: int, before: int) -> float | None:
        """Return a count's growth per second, or None. A new count, or one that decreased, began at 0."""
        if self.seconds <= 0:
            return None
        return (now - before if before <= now else now) / self.seconds

    def share(self, now: float, before: float) -> float:
        """Return the share of the interval, 0 to 1, of a state with these total seconds."""
        return min(1.0, max(0.0, now - before) / self.seconds) if self.seconds > 0 else 0.0

    def quantile(self, level: float, now: pb.Latency, before: pb.Latency) -> float | None:
        """Return a quantile in seconds, interpolated as in Prometheus; None if there were no messages."""
        if self.seconds <= 0:
            return None
        grown = list(now.counts)
        for index, count in enumerate(before.counts[: len(grown)]):
            grown[index] = max(0, grown[index] - count)
        wanted, lower, seen = level * sum(grown), 0.0, 0
        for bound, count in zip(now.bound_seconds, grown, strict=False):
            if count and seen + count >= wanted:
                return lower + (bound - lower) * (wanted - seen) / count
            lower, seen = bound, seen + count
        return lower if any(grown) else None

    def shares(self, now: pb.GetStatusResponse) -> dict[str, float]:
        """Return the shares of the worker's states; after one status, for the worker's last seconds."""
        spent = dict(now.state_seconds)
        if self.seconds > 0:
            spent = {each: took - self.previous.state_seconds[each] for each, took in spent.items()}
        elif now.recent.interval_seconds > 0:
            spent = dict(now.recent.state_seconds)
        total = sum(spent.values()) or 1.0
        return {each: took / total for each, took in spent.items()}


def _age(status: pb.GetStatusResponse) -> float:
    return sum(status.state_seconds.values())


@dataclass(slots=True)
class Blocker:
    """A task that blocks senders: for a `share` of the last `interval_seconds`, at these workers."""

    share: float = 0.0
    interval_seconds: float = 0.0
    blocked_workers: list[str] = field(default_factory=list)


def blocking_tasks(statuses: Iterable[pb.GetStatusResponse]) -> dict[tuple[str, str], Blocker]:
    """Return the tasks that block senders, by the reports of the workers."""
    blockers: dict[tuple[str, str], Blocker] = {}
    for status in statuses:
        for each in status.blocking:
            if each.recent_seconds <= 0 or status.recent.interval_seconds <= 0:
                continue
            at = status.worker_id if each.place == _LOCAL else each.place  # the owner of the task
            blocker = blockers.setdefault((at, each.task), Blocker())
            share = min(1.0, each.recent_seconds / status.recent.interval_seconds)
            if share > blocker.share:  # of the reports of several workers, the worst one counts
                blocker.share, blocker.interval_seconds = share, status.recent.interval_seconds
            blocker.blocked_workers = sorted([*blocker.blocked_workers, status.worker_id])
    return blockers
