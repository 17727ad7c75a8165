"""The division of a task's queue among the sessions that send to the task. Design: docs/design/credit.md."""

from __future__ import annotations

from operator import attrgetter
from typing import NamedTuple


class Amount(NamedTuple):
    """The capacity that a session may use for unreleased messages to one task."""

    messages: int
    size_bytes: int


_EMPTY_SHARE = Amount(0, 0)


class QueueShares:
    """The share of each session in any task's queue, and the messages that closed sessions left.

    While a task's consumer is stalled, a series of short-lived senders could each fill a share of the queue.
    Once their messages fill a quarter of the queue, they are subtracted from the other shares. New sessions
    get a separate grant for each such task; few tasks are that full. Call only from the event loop.
    """

    def __init__(self, capacity: Amount, minimum: Amount) -> None:
        """Divide the capacity of each task's queue. No share is below `minimum` while there is free space."""
        self.capacity = capacity
        self.min_share = minimum
        self._sessions = 1
        self.initial_share = self._share_of(capacity)
        """The share of a queue without many messages of closed sessions."""
        self._orphaned: dict[int, Amount] = {}
        self._announced: dict[int, Amount] = {}

    def _share_of(self, free: Amount) -> Amount:
        return Amount(
            max(self.min_share.messages, free.messages // self._sessions),
            max(self.min_share.size_bytes, free.size_bytes // self._sessions),
        )

    def set_session_count(self, sessions: int) -> None:
        """Set the number of sessions that share the queues."""
        self._sessions = max(1, sessions)
        self.initial_share = self._share_of(self.capacity)

    def share_for(self, task: int) -> Amount:
        """Return the current share of each session in a task's queue."""
        if task not in self._announced:  # less than a quarter of the queue is used by closed sessions
            return self.initial_share
        queued = self._orphaned.get(task, _EMPTY_SHARE)
        free = Amount(self.capacity.messages - queued.messages, self.capacity.size_bytes - queued.size_bytes)
        # With a minimum here, each new sender could add messages to a queue without free space.
        if free.messages <= 0 or free.size_bytes <= 0:
            return _EMPTY_SHARE
        return self._share_of(free)

    @property
    def smallest_share(self) -> Amount:
        """The smallest current share in any task's queue."""
        shares = map(self.share_for, self.reduced_share_tasks)
        return min(shares, key=attrgetter("messages"), default=self.initial_share)

    @property
    def reduced_share_tasks(self) -> list[int]:
        """The tasks with smaller shares: messages of closed sessions fill a quarter of their queue."""
        return list(self._announced)

    def add_orphaned(self, task: int, messages: int, size_bytes: int) -> None:
        """Add the messages that a closed session left in a task's queue."""
        queued = self._orphaned.get(task, _EMPTY_SHARE)
        queued = self._orphaned[task] = Amount(queued.messages + messages, queued.size_bytes + size_bytes)
        if self._is_significant(queued):
            self._announced[task] = queued

    def on_released(self, task: int, messages: int, size_bytes: int) -> bool:
        """Subtract released messages of closed sessions; return True if other senders should get a grant."""
        queued = self._orphaned[task]
        queued = Amount(queued.messages - messages, queued.size_bytes - size_bytes)
        if queued.messages:
            self._orphaned[task] = queued
        else:
            del self._orphaned[task]
        announced = self._announced.get(task)
        if announced is None:
            return False
        freed = Amount(announced.messages - queued.messages, announced.size_bytes - queued.size_bytes)
        if not self._is_significant(queued):
            del self._announced[task]
        elif self._is_significant(freed):  # in steps of a quarter, not at every release
            self._announced[task] = queued
        else:
            return False
        return True

    def _is_significant(self, part: Amount) -> bool:
        return part.messages * 4 >= self.capacity.messages or part.size_bytes * 4 >= self.capacity.size_bytes
