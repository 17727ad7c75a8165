"""Rejected messages: they are redelivered, or sent to the dead-letter task.

Copies that are redelivered behind later messages, and dead letters, wait here until they are sent. The rules:
docs/design/acking.md.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count, groupby
from operator import attrgetter

from tuplewire.session.delivery import DeliveryLog, Done
from tuplewire.session.ledger import DropReason, Ledger
from tuplewire.session.rejection import Rejection
from tuplewire.text.events import event_logger
from tuplewire.text.log_rate import LogRate
from tuplewire.values.dead_letters import again, dead_letter, headers_of, rejections_of
from tuplewire.values.group import TaskGroup
from tuplewire_service.messaging.base import InboundSession, ReceivedBatch
from tuplewire_service.worker.rejected_messages import (
    Copy,
    CopyRoom,
    GrownMessage,
    KeptToken,
    RejectionOutcome,
)
from tuplewire_service.worker.worker_settings import WorkerSettings

logger = event_logger(__name__)

_ROOM = 0.5
"""Once full, the copies to a task have room again when they take no more than this share of it."""
_TURN_COPIES = 100
"""Copies sent in one turn of the event loop: with more, other sessions would notice."""
_LOOK_AGAIN_SECONDS = 1.0
"""How long a copy waits if no worker has its task."""


class Rejections:
    """The rejected messages of all tasks of a worker. Call only from the event loop.

    The copies to one task have as much room as its queue. Beyond it, the sender of a rejected message gets no
    room for more: its message is released when there is room for the copy. So no queued message ever waits
    for room, and memory is bounded by the senders' credit.

    The object is the inbound session of the copies that it sends: see InboundSession.
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

        recv: takes a batch as one of a program. holder_known: returns True if some worker has a task.
        """
        self.on_time: Callable[[], None] = lambda: None
        """Called when the wait of some queue may be over."""
        self.rejections = 0
        """How many rejections there were."""
        self.hurried = False
        """True once the worker drains: there are no more delays."""
        self._settings = settings
        self._ledger = ledger
        self._recv = recv
        self._holder_known = holder_known
        self._waiting: list[Copy] = []
        self._numbers = count()
        self._rooms: dict[int, CopyRoom] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._log_rate = LogRate()

    # --- rejections ------------------------------------------------------------------------------

    def reject(
        self, task: int, log: DeliveryLog, each: Rejection, *, leaves: bool = False
    ) -> RejectionOutcome | None:
        """Take the first unacknowledged message out of a log, or put the cursor back to it.

        Returns None if that is not the rejected one. leaves: True if the task moves away, which waits until
        all of its messages are released.
        """
        found = log.oldest() if log.acknowledged == each.sequence - 1 else None
        if found is None:
            return None
        self.rejections += 1
        outcome = self._outcome(*found, log, each, leaves=leaves)
        if outcome.dropped is not None:
            self._ledger.dropped[outcome.dropped] += 1
        event = "message.given_up" if outcome.given_up else "message.rejected"
        if messages := self._log_rate.due((event, task)):
            extra = {"task": task, "messages": messages, "reason": each.reason or "none was given"}
            logger.warning(event, extra=extra)
        self.wake(outcome.held_until or self.next_due)
        return outcome

    def _outcome(
        self, group: TaskGroup, token: InboundSession, log: DeliveryLog, each: Rejection, *, leaves: bool
    ) -> RejectionOutcome:
        now = time.monotonic()
        due = now if self.hurried else now + each.after_seconds
        rejections = rejections_of(headers_of(group)[1]) + 1
        dead_letter_task = self._settings.dead_letter_task
        settles: DropReason | None = None
        if group.task == dead_letter_task:
            copy = group
        elif rejections < self._settings.reject_limit:
            copy = again(group, rejections)
        elif dead_letter_task is not None:
            copy = dead_letter(group, dead_letter_task, rejections, each.reason, time.time_ns() // 1000)
            settles, due = DropReason.DEAD_LETTERED, now
        else:
            done = _settle(log, each)
            return RejectionOutcome(done, given_up=True, dropped=DropReason.REJECTED)
        if each.wait and settles is None:
            grown = copy.size_bytes - group.size_bytes
            log.replace_oldest(copy, GrownMessage(token, grown) if grown else token)
            log.rewind(log.acknowledged)
            return RejectionOutcome(held_until=due)
        room = self._keep(copy, settles, due)
        done = _settle(log, each)
        own = done.token is self or getattr(done.token, "origin", None) is self
        stays = own and copy.task == group.task  # it has its room already
        if room.full and not (stays or leaves or self.hurried):
            done = replace(done, token=KeptToken(done.token, room))
        return RejectionOutcome(done, given_up=settles is not None)

    @property
    def has_room(self) -> bool:
        """True if there is a dead-letter task, and room for a letter; from any thread, as of now."""
        task = self._settings.dead_letter_task
        return task is not None and not self.is_full(task)

    def bury(self, group: TaskGroup, count: int, reason: str) -> None:
        """Send a single message, which was tried so often, to the dead-letter task.

        Without room for it, the message counts as dropped{rejected}.
        """
        self._ledger.accepted += 1
        task, now = self._settings.dead_letter_task, time.monotonic()
        if task is None or self.is_full(task):
            self._ledger.dropped[DropReason.REJECTED] += 1
        else:
            letter = dead_letter(group, task, count, reason, time.time_ns() // 1000)
            self._keep(letter, DropReason.DEAD_LETTERED, now)
            self.wake(now)

    def _keep(self, copy: TaskGroup, settles: DropReason | None, due: float) -> CopyRoom:
        """Keep a copy as a message of this worker's own; return the room that it takes."""
        own = copy.as_new()
        self._put_back(Copy(due, next(self._numbers), own, settles), due)
        room = self._rooms.setdefault(own.task, CopyRoom())
        room.messages += 1
        room.size_bytes += own.size_bytes
        room.full |= self._used(room) >= 1
        return room

    def _used(self, room: CopyRoom) -> float:
        return room.used(self._settings.receive_queue_messages, self._settings.receive_queue_bytes)

    def is_full(self, task: int) -> bool:
        """Return True if the copies to a task have no room; from any thread."""
        room = self._rooms.get(task)
        return room is not None and room.full

    def release(self, task: int, messages: int, size_bytes: int) -> None:
        """See InboundSession."""
        room = self._rooms[task]
        room.messages -= messages
        room.size_bytes -= size_bytes
        if room.full and self._used(room) <= _ROOM:
            room.full = False
            room.give_back()
        if not room.messages:
            del self._rooms[task]

    def give_back(self, task: int) -> None:
        """Release the rejected messages of a task that moves away to their senders."""
        for room in list(self._rooms.values()):
            room.give_back(task)

    def hurry(self) -> None:
        """Wait for no delay and no room from now on: the worker drains."""
        self.hurried = True
        for copy in self._waiting:
            copy.due = -math.inf
        heapq.heapify(self._waiting)
        for room in list(self._rooms.values()):
            room.give_back()
        self.wake(-math.inf)

    # --- copies ----------------------------------------------------------------------------------

    @property
    def next_due(self) -> float | None:
        """When the next copy is due; None: there is none."""
        return self._waiting[0].due if self._waiting else None

    def take_due(self, now: float, most: int) -> list[Copy]:
        """Take out the copies that are due, at most `most` of them, in order."""
        due: list[Copy] = []
        while self._waiting and self._waiting[0].due <= now and len(due) < most:
            due.append(heapq.heappop(self._waiting))
        return due

    def _put_back(self, copy: Copy, due: float) -> None:
        copy.due = due
        heapq.heappush(self._waiting, copy)

    def wake(self, at: float | None) -> None:
        """Look at what is due at a time, or at the time before it that is known already."""
        if at is None:
            return
        loop = asyncio.get_running_loop()
        # Never at once: the caller is about to settle the originals.
        at = max(at, loop.time())
        if self._timer is not None:
            if self._timer.when() <= at:  # also where it is due: rejections in every turn would put it off
                return
            self._timer.cancel()
        self._timer = loop.call_at(at, self._look)

    def _look(self) -> None:
        self._timer = None
        now = time.monotonic()
        for settles, run in groupby(self.take_due(now, _TURN_COPIES), attrgetter("settles")):
            self._send(list(run), settles, now)
        self.on_time()
        self.wake(self.next_due)

    def _send(self, copies: Sequence[Copy], settles: DropReason | None, now: float) -> None:
        """Send copies as messages of this worker; a copy whose task no worker has waits again."""
        known = []
        for copy in copies:
            if self._holder_known(copy.group.task):
                known.append(copy.group)
            else:
                self._put_back(copy, now + _LOOK_AGAIN_SECONDS)
        if settles is None:
            self._ledger.acknowledged += len(known)
        else:
            self._ledger.dropped[settles] += len(known)
        if known:
            self._recv(ReceivedBatch.arrived(known, self))

    def held_groups(self) -> Iterator[TaskGroup]:
        """Return the waiting copies."""
        return (copy.group for copy in self._waiting)

    @property
    def waiting(self) -> int:
        """The number of copies that wait."""
        return len(self._waiting)

    def close(self) -> list[TaskGroup]:
        """Take out every waiting copy, at the end."""
        if self._timer is not None:
            self._timer.cancel()
        groups = list(self.held_groups())
        self._waiting.clear()
        return groups


def _settle(log: DeliveryLog, each: Rejection) -> Done:
    [done] = log.progress(each.sequence, each.sequence)
    if each.wait:
        log.rewind(log.acknowledged)  # its consumer has thrown away what follows
    return replace(done, rejected=True)
