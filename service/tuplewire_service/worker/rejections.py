"""Rejected messages at a worker: their timers, their way back, and their part of the ledger."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter

from tuplewire.session.delivery import DeliveryLog
from tuplewire.session.ledger import DropReason, Ledger
from tuplewire.session.rejection import Rejection
from tuplewire.text.events import event_logger
from tuplewire.text.log_rate import LogRate
from tuplewire.values.group import TaskGroup
from tuplewire_service.messaging.base import ReceivedBatch
from tuplewire_service.worker.rejected_messages import Copy, RejectedMessages, RejectionOutcome
from tuplewire_service.worker.worker_settings import WorkerSettings
from tuplewire_service.worker.worker_snapshot import RejectedSnapshot

logger = event_logger(__name__)

_TURN_COPIES = 100
"""Copies sent in one turn of the event loop: with more, other sessions would notice."""
_LOOK_AGAIN_SECONDS = 1.0
"""So long a copy waits whose task nobody has."""


class Rejections:
    """What a worker does with rejections. Belongs to the event loop.

    The object is the inbound session of what it sends: see InboundSession.
    """

    source = sender_id = "rejected"
    worker_number = 0
    wants_releases = False

    def __init__(
        self,
        settings: WorkerSettings,
        ledger: Ledger,
        recv: Callable[[ReceivedBatch], None],
        holder_known: Callable[[int], bool],
    ) -> None:
        """Start without any.

        recv: takes a batch as one of a program. holder_known: returns whether anybody has a task.
        """
        self.messages = RejectedMessages(
            settings.reject_limit,
            settings.dead_letter_task,
            self,
            settings.receive_queue_messages,
            settings.receive_queue_bytes,
        )
        self.on_time: Callable[[], None] = lambda: None
        """Called when the wait of some queue may be over."""
        self._ledger = ledger
        self._recv = recv
        self._holder_known = holder_known
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._log_rate = LogRate()

    def reject(
        self, task: int, log: DeliveryLog, each: Rejection, *, leaves: bool = False
    ) -> RejectionOutcome | None:
        """See RejectedMessages.reject."""
        now = time.monotonic()
        outcome = self.messages.reject(log, each, now, time.time_ns() // 1000, leaves=leaves)
        if outcome is not None:
            if outcome.dropped is not None:
                self._ledger.dropped[outcome.dropped] += 1
            event = "message.given_up" if outcome.given_up else "message.rejected"
            if messages := self._log_rate.due((event, task)):
                extra = {"task": task, "messages": messages, "reason": each.reason or "none was given"}
                logger.warning(event, extra=extra)
            self.wake(outcome.held_until or self.messages.next_due)
        return outcome

    @property
    def has_room(self) -> bool:
        """Whether there is a dead-letter task, and room for a letter; from any thread, as of now."""
        task = self.messages.dead_letter_task
        return task is not None and not self.messages.is_full(task)

    def bury(self, group: TaskGroup, count: int, reason: str) -> None:
        """Send a single message, which was tried so often, to the dead-letter task.

        Where there is no room, it counts as dropped{rejected}.
        """
        now = time.monotonic()
        self._ledger.accepted += 1
        if self.messages.bury(group, count, reason, now, time.time_ns() // 1000):
            self.wake(now)
        else:
            self._ledger.dropped[DropReason.REJECTED] += 1

    def wake(self, at: float | None) -> None:
        """Look at what is due at a time, or at the time before it that is known already."""
        if at is None:
            return
        # Never at once: the caller is about to settle the originals.
        at = max(at, self._loop.time())
        if self._timer is not None:
            if self._timer.when() <= at:  # also where it is due: rejections in every turn would put it off
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(at, self._look)

    def _look(self) -> None:
        self._timer = None
        now = time.monotonic()
        due = self.messages.take_due(now, _TURN_COPIES)
        for settles, run in groupby(due, attrgetter("settles")):
            self._send(list(run), settles, now)
        self.on_time()
        self.wake(self.messages.next_due)

    def _send(self, copies: Sequence[Copy], settles: DropReason | None, now: float) -> None:
        """Put copies on their way, as messages of this worker; those that nobody takes wait again."""
        known = []
        for copy in copies:
            if self._holder_known(copy.group.task):
                known.append(copy.group)
            else:
                self.messages.put_back(copy, now + _LOOK_AGAIN_SECONDS)
        if settles is None:
            self._ledger.acknowledged += len(known)
        else:
            self._ledger.dropped[settles] += len(known)
        if known:
            self._recv(ReceivedBatch.arrived(known, self))

    def release(self, task: int, messages: int, size_bytes: int) -> None:
        """See InboundSession."""
        self.messages.released(task, messages, size_bytes)

    def hurry(self) -> None:
        """Wait for no delay any more: the worker drains."""
        self.messages.hurry()
        self.wake(self._loop.time())

    def held_groups(self) -> Iterator[TaskGroup]:
        """Return what waits here."""
        return self.messages.held_groups()

    def snapshot(self) -> RejectedSnapshot:
        """Return the counts."""
        messages = self.messages
        return RejectedSnapshot(messages.rejections, len(messages), messages.dead_letter_task)

    def close(self) -> list[TaskGroup]:
        """Take out everything that waits, at the end."""
        if self._timer is not None:
            self._timer.cancel()
        return self.messages.clear()
