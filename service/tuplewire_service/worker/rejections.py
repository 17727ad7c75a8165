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
from tuplewire.text.events import LogRateLimiter, event_logger
from tuplewire.values.dead_letters import dead_letter, read_key_and_headers, rejections_of, with_rejections
from tuplewire.values.group import TaskGroup
from tuplewire.wire.messaging_pb2 import Rejection
from tuplewire_service.messaging.base import InboundSession, ReceivedBatch
from tuplewire_service.worker.delivery import AckedGroup, DeliveryLog
from tuplewire_service.worker.task_queue import TaskQueue
from tuplewire_service.worker.worker_settings import WorkerSettings

logger = event_logger(__name__)

_LOW_WATERMARK = 0.5
"""Share of their limit to which the copies of a task must fall before new ones are accepted again."""
_COPIES_PER_TURN = 100
"""Maximum number of copies sent in one turn of the event loop, so that other sessions are not delayed."""
_RECHECK_SECONDS = 1.0
"""Seconds that a copy waits if no worker owns its task."""
_COPY_OVERHEAD_BYTES = 512
"""Memory for a copy in addition to its payload and headers."""


class GrownMessageSession:
    """The inbound session of a message that grew here. Releases to its sender use the original size."""

    __slots__ = ("_grown_bytes", "_inbound", "awaits_releases", "origin", "sender_id", "worker_number")

    def __init__(self, inbound: InboundSession, grown_bytes: int) -> None:
        self.sender_id = inbound.sender_id
        self.worker_number = inbound.worker_number
        self.awaits_releases = inbound.awaits_releases
        self._inbound = inbound
        self._grown_bytes = grown_bytes
        # A message may grow with each rejection.
        self.origin: InboundSession = inbound.origin if isinstance(inbound, GrownMessageSession) else inbound

    def release(self, task: int, messages: int, size_bytes: int) -> None:
        """See InboundSession."""
        self._inbound.release(task, messages, size_bytes - self._grown_bytes)


@dataclass(slots=True, eq=False)
class CopyUsage:
    """The usage of a task's copies: waiting copies, and sent copies that are not released.

    It replaces the inbound session of a message whose copy exceeded the limit. `deferred_releases` holds
    the original sessions, and the arguments of their release() calls, until there is space again. If such a
    message was itself a copy and is now a dead letter, its space as a copy stays occupied.
    """

    messages: int = 0
    size_bytes: int = 0
    is_full: bool = False
    deferred_releases: list[tuple[InboundSession, int, int, int]] = field(default_factory=list)

    def release(self, task: int, messages: int, size_bytes: int) -> None:
        """Do nothing; see release_originals()."""

    def release_originals(self, task: int | None = None) -> None:
        """Release the waiting originals to their senders; with `task`, only messages to this task."""
        deferred, self.deferred_releases = self.deferred_releases, []
        for each in deferred:
            if task is None or each[1] == task:
                each[0].release(*each[1:])
            else:
                self.deferred_releases.append(each)


@dataclass(order=True, slots=True)
class RejectedCopy:
    """A copy of a rejected message, to send at `due_at`. `drop_reason` is that of the original, if any."""

    due_at: float
    number: int
    group: TaskGroup = field(compare=False)
    drop_reason: DropReason | None = field(compare=False)


@dataclass(eq=False, repr=False)
class Rejections:
    """The rejected messages of all tasks of a worker. Call only from the event loop.

    The copies for a task have the limits of its queue. Beyond them, a rejected message is not released to its
    sender until there is space for the copy. So no queued message waits for space, and the senders' credit
    bounds the memory. The object is the inbound session of the copies that it sends; see InboundSession.
    """

    settings: WorkerSettings
    ledger: Ledger
    route: Callable[[ReceivedBatch], None]
    can_route: Callable[[int], bool]
    rejection_count: int = 0
    ignore_delays: bool = False
    """True once the worker drains: delays no longer apply."""
    waiting_copies: list[RejectedCopy] = field(default_factory=list)
    _blocked_queues: dict[int, TaskQueue] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=count)
    _usage_by_task: dict[int, CopyUsage] = field(default_factory=dict)
    _timer: asyncio.TimerHandle | None = None
    _log_rate: LogRateLimiter = field(default_factory=LogRateLimiter)
    sender_id = "rejected"
    worker_number = 0
    awaits_releases = False

    def reject(self, queue: TaskQueue, rejection: Rejection) -> AckedGroup | None:
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
        found = log.split_oldest() if log.acknowledged == rejection.sequence - 1 else None
        if found is None:
            return None
        group, inbound = found
        self.rejection_count += 1
        copy, drop_reason = self._copy_of(group, rejection)
        event = "message.rejected" if drop_reason is None else "message.reject_limit_reached"
        if messages := self._log_rate.count_event((event, task)):
            extra = {"task": task, "messages": messages, "reason": rejection.reason or "none was given"}
            logger.warning(event, extra=extra)
        # 2. Counted here, because no copy is sent that would count it later.
        if copy is None:
            self.ledger.dropped[DropReason.REJECTED] += 1
            return _settle(log, rejection)
        now = time.monotonic()
        due = now if self.ignore_delays or drop_reason is not None else now + rejection.after_millis / 1000
        self.schedule(due)
        # 3. Later messages follow it, so the consumer receives its messages in order.
        if rejection.wait and drop_reason is None:
            grown_bytes = copy.size_bytes - group.size_bytes
            log.replace_oldest(copy, GrownMessageSession(inbound, grown_bytes) if grown_bytes else inbound)
            log.rewind(log.acknowledged)
            queue.blocked_until = max(queue.blocked_until, due)
            return None
        # 4. Later messages are delivered in the meantime.
        usage = self._store_copy(copy, drop_reason, due)
        done = _settle(log, rejection)
        is_own_copy = done.inbound is self or getattr(done.inbound, "origin", None) is self
        already_counted = is_own_copy and copy.task == group.task  # it already occupies space
        # 5. Not during a move: it waits until all of the task's messages are released.
        if usage.is_full and not (already_counted or queue.is_leaving or self.ignore_delays):
            usage.deferred_releases.append((done.inbound, task, done.messages, done.size_bytes))
            done = replace(done, inbound=usage)
        return done

    def _copy_of(self, group: TaskGroup, rejection: Rejection) -> tuple[TaskGroup | None, DropReason | None]:
        """Return the copy of a rejected message, and the reason that the original is dropped, if any."""
        rejections = rejections_of(read_key_and_headers(group)[1]) + 1
        dead_letter_task = self.settings.dead_letter_task
        # A dead letter is never dropped or moved again: it is redelivered without a limit.
        if group.task == dead_letter_task:
            return group, None
        # The number is a header, so it stays with the message through moves.
        if rejections < self.settings.reject_limit:
            return with_rejections(group, rejections), None
        # The ledger distinguishes both outcomes.
        if dead_letter_task is None:
            return None, DropReason.REJECTED
        letter = dead_letter(group, dead_letter_task, rejections, rejection.reason, time.time_ns() // 1000)
        return letter, DropReason.DEAD_LETTERED

    @property
    def accepts_dead_letters(self) -> bool:
        """True if there is a dead-letter task with space. May be read from any thread."""
        task = self.settings.dead_letter_task
        return task is not None and not self.is_full(task)

    def emit_dead_letter(self, group: TaskGroup, attempts: int, reason: str) -> None:
        """Send a message to the dead-letter task after these attempts, or count it as dropped{rejected}."""
        self.ledger.accepted += 1
        task, now = self.settings.dead_letter_task, time.monotonic()
        if task is None or self.is_full(task):
            self.ledger.dropped[DropReason.REJECTED] += 1
        else:
            letter = dead_letter(group, task, attempts, reason, time.time_ns() // 1000)
            self._store_copy(letter, DropReason.DEAD_LETTERED, now)
            self.schedule(now)

    def _store_copy(self, copy: TaskGroup, drop_reason: DropReason | None, due: float) -> CopyUsage:
        """Store a copy as this worker's own message; return the usage of its task."""
        local_copy = copy.without_routing()
        heapq.heappush(self.waiting_copies, RejectedCopy(due, next(self._numbers), local_copy, drop_reason))
        usage = self._usage_by_task.setdefault(local_copy.task, CopyUsage())
        usage.messages += 1
        usage.size_bytes += local_copy.size_bytes
        usage.is_full |= self._usage_ratio(usage) >= 1
        return usage

    def _usage_ratio(self, usage: CopyUsage) -> float:
        """Return the used share of the space for the copies of a task; 1 or more is full."""
        limits, size_bytes = self.settings, usage.size_bytes + _COPY_OVERHEAD_BYTES * usage.messages
        return max(usage.messages / limits.receive_queue_messages, size_bytes / limits.receive_queue_bytes)

    def is_full(self, task: int) -> bool:
        """Return True if there is no space for copies of a task. May be called from any thread."""
        usage = self._usage_by_task.get(task)
        return usage is not None and usage.is_full

    def release(self, task: int, messages: int, size_bytes: int) -> None:
        """See InboundSession."""
        usage = self._usage_by_task[task]
        usage.messages -= messages
        usage.size_bytes -= size_bytes
        if usage.is_full and self._usage_ratio(usage) <= _LOW_WATERMARK:
            usage.is_full = False
            usage.release_originals()
        if not usage.messages:
            del self._usage_by_task[task]

    def release_originals(self, task: int | None = None) -> None:
        """Release the rejected messages of a task that moves away to their senders; None: of all tasks."""
        # Of all tasks, because copies for the dead-letter task come from several tasks.
        for usage in list(self._usage_by_task.values()):
            usage.release_originals(task)

    def send_immediately(self) -> None:
        """Stop waiting for delays and space, because the worker drains."""
        self.ignore_delays = True
        for copy in self.waiting_copies:
            copy.due_at = -math.inf
        # With equal times, copies are sent in the order of their numbers.
        heapq.heapify(self.waiting_copies)
        self.release_originals()
        self.schedule(-math.inf)

    def take_due(self, now: float, limit: int) -> list[RejectedCopy]:
        """Remove and return the copies that are due, at most `limit`, in order."""
        due_copies: list[RejectedCopy] = []
        while self.waiting_copies and self.waiting_copies[0].due_at <= now and len(due_copies) < limit:
            due_copies.append(heapq.heappop(self.waiting_copies))
        return due_copies

    def schedule(self, send_at: float) -> None:
        """Send due copies at this time, or at an earlier time that is already scheduled."""
        loop = asyncio.get_running_loop()
        # Never immediately: the caller still has to settle the originals.
        send_at = max(send_at, loop.time())
        if self._timer is not None:
            if self._timer.when() <= send_at:  # also if it is overdue: repeated rejections would postpone it
                return
            self._timer.cancel()
        self._timer = loop.call_at(send_at, self._send_due)

    def _send_due(self) -> None:
        self._timer = None
        now = time.monotonic()
        for drop_reason, run in groupby(self.take_due(now, _COPIES_PER_TURN), attrgetter("drop_reason")):
            self._send(list(run), drop_reason, now)
        self.retry_blocked()
        if self.waiting_copies:
            self.schedule(self.waiting_copies[0].due_at)

    def check_blocked(self, queue: TaskQueue) -> bool:
        """Return True if a rejected message blocks the queue until its delay has passed."""
        if queue.blocked_until > time.monotonic() and not self.ignore_delays:
            self.schedule(queue.blocked_until)
            self._blocked_queues[queue.task] = queue
            return True
        queue.blocked_until = 0.0
        return False

    def retry_blocked(self) -> None:
        """Have consumers check queues that were blocked."""
        queues, self._blocked_queues = self._blocked_queues, {}
        for queue in queues.values():
            if queue.consumer is not None:
                queue.consumer.mark_ready(queue)

    def _send(self, copies: Sequence[RejectedCopy], drop_reason: DropReason | None, now: float) -> None:
        """Send copies as messages of this worker; copies for tasks without an owner wait again."""
        routable = []
        for copy in copies:
            if self.can_route(copy.group.task):
                routable.append(copy.group)
            else:
                copy.due_at = now + _RECHECK_SECONDS
                heapq.heappush(self.waiting_copies, copy)
        # The original is settled before its copy is accepted, so the ledger counts both.
        if drop_reason is None:
            self.ledger.acknowledged += len(routable)
        else:
            self.ledger.dropped[drop_reason] += len(routable)
        if routable:
            self.route(ReceivedBatch.for_callback(routable, self))

    def close(self) -> list[TaskGroup]:
        """Remove and return every waiting copy, during the shutdown."""
        if self._timer is not None:
            self._timer.cancel()
        groups = [copy.group for copy in self.waiting_copies]
        self.waiting_copies.clear()
        return groups


def _settle(log: DeliveryLog, rejection: Rejection) -> AckedGroup:
    [done] = log.apply_progress(rejection.sequence, rejection.sequence)
    if rejection.wait:
        log.rewind(log.acknowledged)  # its consumer has discarded the later messages
    return replace(done, rejected=True)
