"""Rejected messages: they are redelivered, or sent to the dead-letter task.

Used by router.py and queue_subscription.py. Owns the copies that wait: copies to redeliver behind later
messages, and dead letters. Call only from the event loop. Design: docs/design/acking.md.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, groupby
from operator import attrgetter

from tuplewire.session.ledger import DropReason, Ledger
from tuplewire.text.events import LogRate, event_logger
from tuplewire.values.dead_letters import again, dead_letter, headers_of, rejections_of
from tuplewire.values.group import TaskGroup
from tuplewire.wire.messaging_pb2 import Rejection
from tuplewire_service.messaging.base import InboundSession, ReceivedBatch
from tuplewire_service.worker.delivery import Acknowledged, DeliveryLog
from tuplewire_service.worker.queue import Queue
from tuplewire_service.worker.worker_settings import WorkerSettings

logger = event_logger(__name__)

_ACCEPT_AGAIN_SHARE = 0.5
"""Share of their limit to which the copies of a task must fall before new ones are accepted again."""
_TURN_COPIES = 100
"""Maximum number of copies sent in one turn of the event loop, so that other sessions are not delayed."""
_RECHECK_SECONDS = 1.0
"""Seconds that a copy waits if no worker owns its task."""
_COPY_BYTES = 512
"""Memory for a copy in addition to its payload and headers."""


class GrownInboundSession:
    """The inbound session of a message that grew here. Releases to its sender use the original size."""

    __slots__ = ("_grown_bytes", "_inbound", "needs_release_acks", "origin", "sender_id", "worker_number")

    def __init__(self, inbound: InboundSession, grown_bytes: int) -> None:
        self.sender_id = inbound.sender_id
        self.worker_number = inbound.worker_number
        self.needs_release_acks = inbound.needs_release_acks
        self._inbound = inbound
        self._grown_bytes = grown_bytes
        # A message may grow with each rejection.
        self.origin: InboundSession = inbound.origin if isinstance(inbound, GrownInboundSession) else inbound
        """The original inbound session."""

    def release(self, task: int, messages: int, size_bytes: int) -> None:
        """See InboundSession."""
        self._inbound.release(task, messages, size_bytes - self._grown_bytes)


@dataclass(slots=True, eq=False)
class CopyRoom:
    """The usage of a task's copies: waiting copies, and sent copies that are not released.

    It replaces the inbound session of a message whose copy exceeded the limit. `kept` holds the original
    sessions, and the arguments of their release() calls, until there is space again. If such a message was
    itself a copy and is now a dead letter, its space as a copy stays occupied.
    """

    messages: int = 0
    size_bytes: int = 0
    full: bool = False
    kept: list[tuple[InboundSession, int, int, int]] = field(default_factory=list)

    def release(self, task: int, messages: int, size_bytes: int) -> None:
        """Do nothing; see give_back()."""

    def give_back(self, task: int | None = None) -> None:
        """Release the waiting originals to their senders; with `task`, only messages to this task."""
        kept, self.kept = self.kept, []
        for each in kept:
            if task is None or each[1] == task:
                each[0].release(*each[1:])
            else:
                self.kept.append(each)


@dataclass(order=True, slots=True)
class Copy:
    """A copy of a rejected message, to send when `due`. `settles` is the original's drop reason, if any."""

    due: float
    number: int
    group: TaskGroup = field(compare=False)
    settles: DropReason | None = field(compare=False)


class Rejections:
    """The rejected messages of all tasks of a worker. Call only from the event loop.

    The copies for a task have the limits of its queue. Beyond them, a rejected message is not released to its
    sender until there is space for the copy. So no queued message waits for space, and the senders' credit
    bounds the memory. The object is the inbound session of the copies that it sends; see InboundSession.
    """

    sender_id = "rejected"
    worker_number = 0
    needs_release_acks = False

    def __init__(
        self,
        settings: WorkerSettings,
        ledger: Ledger,
        recv: Callable[[ReceivedBatch], None],
        holder_known: Callable[[int], bool],
    ) -> None:
        """Send copies through `recv`. `holder_known` returns True if a worker owns a task."""
        self.rejections = 0
        """Total number of rejections."""
        self.hurried = False
        """True once the worker drains: delays no longer apply."""
        self._settings = settings
        self._ledger = ledger
        self._recv = recv
        self._holder_known = holder_known
        self._waiting: list[Copy] = []
        self._held: dict[int, Queue] = {}
        self._numbers = count()
        self._rooms: dict[int, CopyRoom] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._log_rate = LogRate()

    def reject(self, queue: Queue, each: Rejection) -> Acknowledged | None:
        """Remove the oldest unacknowledged message from a queue, or block the queue until its redelivery.

        Returns the message if it has left its queue; None if it stays there, or if another message was
        rejected. See docs/design/acking.md.

        1. The message is not the oldest unacknowledged one: nothing happens.
        2. It has reached the reject limit, and there is no dead-letter task: it is dropped.
        3. Its consumer waits for it, and it becomes no dead letter: it keeps its place, and its queue waits.
        4. Otherwise it leaves its queue, and a copy is sent when it is due.
        5. There is no space for the copy: the sender gets no credit for the message until there is, unless
           the task moves or the worker drains.
        """
        log, task = queue.log, queue.task
        # 1. Only the oldest unacknowledged message can be rejected, so repeated reports have no effect.
        found = log.oldest() if log.acknowledged == each.sequence - 1 else None
        if found is None:
            return None
        group, inbound = found
        self.rejections += 1
        copy, settles = self._copy_of(group, each)
        event = "message.rejected" if settles is None else "message.given_up"
        if messages := self._log_rate.due((event, task)):
            extra = {"task": task, "messages": messages, "reason": each.reason or "none was given"}
            logger.warning(event, extra=extra)
        # 2. Counted here, because no copy is sent that would count it later.
        if copy is None:
            self._ledger.dropped[DropReason.REJECTED] += 1
            return _settle(log, each)
        now = time.monotonic()
        due = now if self.hurried or settles is not None else now + each.after_millis / 1000
        self.wake(due)
        # 3. Later messages follow it, so the consumer receives its messages in order.
        if each.wait and settles is None:
            grown = copy.size_bytes - group.size_bytes
            log.replace_oldest(copy, GrownInboundSession(inbound, grown) if grown else inbound)
            log.rewind(log.acknowledged)
            queue.held_until = max(queue.held_until, due)
            return None
        # 4. Later messages are delivered in the meantime.
        room = self._keep(copy, settles, due)
        done = _settle(log, each)
        own = done.inbound is self or getattr(done.inbound, "origin", None) is self
        stays = own and copy.task == group.task  # it already occupies space
        # 5. Not during a move: it waits until all of the task's messages are released.
        if room.full and not (stays or queue.leaving or self.hurried):
            room.kept.append((done.inbound, task, done.messages, done.size_bytes))
            done = replace(done, inbound=room)
        return done

    def _copy_of(self, group: TaskGroup, each: Rejection) -> tuple[TaskGroup | None, DropReason | None]:
        """Return the copy of a rejected message, and the reason that the original is dropped, if any."""
        rejections = rejections_of(headers_of(group)[1]) + 1
        dead_letter_task = self._settings.dead_letter_task
        # A dead letter is never dropped or moved again: it is redelivered without a limit.
        if group.task == dead_letter_task:
            return group, None
        # The number is a header, so it stays with the message through moves.
        if rejections < self._settings.reject_limit:
            return again(group, rejections), None
        # The ledger distinguishes both outcomes.
        if dead_letter_task is None:
            return None, DropReason.REJECTED
        now_micros = time.time_ns() // 1000
        letter = dead_letter(group, dead_letter_task, rejections, each.reason, now_micros)
        return letter, DropReason.DEAD_LETTERED

    @property
    def has_room(self) -> bool:
        """True if there is a dead-letter task with space. May be read from any thread."""
        task = self._settings.dead_letter_task
        return task is not None and not self.is_full(task)

    def emit_dead_letter(self, group: TaskGroup, count: int, reason: str) -> None:
        """Send a message to the dead-letter task after `count` attempts, or count it as dropped{rejected}."""
        self._ledger.accepted += 1
        task, now = self._settings.dead_letter_task, time.monotonic()
        if task is None or self.is_full(task):
            self._ledger.dropped[DropReason.REJECTED] += 1
        else:
            letter = dead_letter(group, task, count, reason, time.time_ns() // 1000)
            self._keep(letter, DropReason.DEAD_LETTERED, now)
            self.wake(now)

    def _keep(self, copy: TaskGroup, settles: DropReason | None, due: float) -> CopyRoom:
        """Store a copy as this worker's own message; return the space accounting of its task."""
        own = copy.as_new()
        heapq.heappush(self._waiting, Copy(due, next(self._numbers), own, settles))
        room = self._rooms.setdefault(own.task, CopyRoom())
        room.messages += 1
        room.size_bytes += own.size_bytes
        room.full |= self._used(room) >= 1
        return room

    def _used(self, room: CopyRoom) -> float:
        """Return the used share of the space for the copies of a task; 1 or more is full."""
        settings, size_bytes = self._settings, room.size_bytes + _COPY_BYTES * room.messages
        return max(room.messages / settings.receive_queue_messages, size_bytes / settings.receive_queue_bytes)

    def is_full(self, task: int) -> bool:
        """Return True if there is no space for copies of a task. May be called from any thread."""
        room = self._rooms.get(task)
        return room is not None and room.full

    def release(self, task: int, messages: int, size_bytes: int) -> None:
        """See InboundSession."""
        room = self._rooms[task]
        room.messages -= messages
        room.size_bytes -= size_bytes
        if room.full and self._used(room) <= _ACCEPT_AGAIN_SHARE:
            room.full = False
            room.give_back()
        if not room.messages:
            del self._rooms[task]

    def give_back(self, task: int | None = None) -> None:
        """Release the rejected messages of a task that moves away to their senders; None: of all tasks."""
        # All rooms, because copies for the dead-letter task come from several tasks.
        for room in list(self._rooms.values()):
            room.give_back(task)

    def send_immediately(self) -> None:
        """Stop waiting for delays and space, because the worker drains."""
        self.hurried = True
        for copy in self._waiting:
            copy.due = -math.inf
        # With equal times, copies are sent in the order of their numbers.
        heapq.heapify(self._waiting)
        self.give_back()
        self.wake(-math.inf)

    def take_due(self, now: float, most: int) -> list[Copy]:
        """Remove and return the copies that are due, at most `most`, in order."""
        due: list[Copy] = []
        while self._waiting and self._waiting[0].due <= now and len(due) < most:
            due.append(heapq.heappop(self._waiting))
        return due

    def wake(self, at: float) -> None:
        """Send due copies at this time, or at an earlier time that is already scheduled."""
        loop = asyncio.get_running_loop()
        # Never immediately: the caller still has to settle the originals.
        at = max(at, loop.time())
        if self._timer is not None:
            if self._timer.when() <= at:  # also if it is overdue: repeated rejections would postpone it
                return
            self._timer.cancel()
        self._timer = loop.call_at(at, self._look)

    def _look(self) -> None:
        self._timer = None
        now = time.monotonic()
        for settles, run in groupby(self.take_due(now, _TURN_COPIES), attrgetter("settles")):
            self._send(list(run), settles, now)
        self.retry_held()
        if self._waiting:
            self.wake(self._waiting[0].due)

    def holds(self, queue: Queue) -> bool:
        """Return True if a rejected message blocks the queue until its delay has passed."""
        if not queue.held_until:
            return False
        if queue.held_until > time.monotonic() and not self.hurried:
            self.wake(queue.held_until)
            self._held[queue.task] = queue
            return True
        queue.held_until = 0.0
        return False

    def retry_held(self) -> None:
        """Have consumers check queues that were blocked."""
        held, self._held = self._held, {}
        for queue in held.values():
            if queue.consumer is not None:
                queue.consumer.mark(queue)

    def _send(self, copies: Sequence[Copy], settles: DropReason | None, now: float) -> None:
        """Send copies as messages of this worker; copies for tasks without an owner wait again."""
        known = []
        for copy in copies:
            if self._holder_known(copy.group.task):
                known.append(copy.group)
            else:
                copy.due = now + _RECHECK_SECONDS
                heapq.heappush(self._waiting, copy)
        # The original is settled before its copy is accepted, so the ledger counts both.
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
        """Remove and return every waiting copy, during the shutdown."""
        if self._timer is not None:
            self._timer.cancel()
        groups = list(self.held_groups())
        self._waiting.clear()
        return groups


def _settle(log: DeliveryLog, each: Rejection) -> Acknowledged:
    [done] = log.progress(each.sequence, each.sequence)
    if each.wait:
        log.rewind(log.acknowledged)  # its consumer has discarded the later messages
    return replace(done, rejected=True)
