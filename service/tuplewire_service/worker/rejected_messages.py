"""What becomes of messages that consumers reject: they come again, or go to the dead-letter task.

Copies that come again behind later messages, and dead letters, wait here until they are sent. Pure state, in
which times are arguments. The rules: docs/design/acking.md.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count

from tuplewire.session.delivery import DeliveryLog, Done
from tuplewire.session.ledger import DropReason
from tuplewire.session.rejection import Rejection
from tuplewire.values.dead_letters import again, dead_letter, headers_of, rejections_of
from tuplewire.values.group import TaskGroup
from tuplewire_service.messaging.base import InboundSession

_COPY_BYTES = 512
"""Memory for a copy in addition to its payload and headers."""
_ROOM = 0.5
"""Once full, the copies to a task have room again when they take no more than this share of it."""


class GrownMessage:
    """The inbound session of a message that has got longer here: its sender is told of what it had sent."""

    __slots__ = (
        "_grown_bytes",
        "_inbound",
        "origin",
        "sender_id",
        "source",
        "wants_releases",
        "worker_number",
    )

    def __init__(self, inbound: InboundSession, grown_bytes: int) -> None:
        self.source, self.sender_id = inbound.source, inbound.sender_id
        self.worker_number = inbound.worker_number
        self.wants_releases = inbound.wants_releases
        self._inbound = inbound
        self._grown_bytes = grown_bytes
        self.origin: InboundSession = inbound.origin if isinstance(inbound, GrownMessage) else inbound
        """Where it came from at first."""

    def release(self, task: int, messages: int, size_bytes: int) -> None:
        """See InboundSession."""
        self._inbound.release(task, messages, size_bytes - self._grown_bytes)


@dataclass(slots=True, eq=False)
class _Room:
    """What the copies to a task take: those that wait here, or were sent and are not released.

    kept: what their senders hear of once there is room again, as arguments of release().
    """

    messages: int = 0
    size_bytes: int = 0
    full: bool = False
    kept: list[tuple[InboundSession, int, int, int]] = field(default_factory=list)

    def used(self, most_messages: int, most_bytes: int) -> float:
        """Return how much of the room is taken: from 0, and 1 where it is full."""
        taken_bytes = self.size_bytes + _COPY_BYTES * self.messages
        return max(self.messages / most_messages, taken_bytes / most_bytes)

    def give_back(self, task: int | None = None) -> None:
        """Tell the senders; task: only of what was sent to this one."""
        kept, self.kept = self.kept, []
        for each in kept:
            if task is None or each[1] == task:
                each[0].release(*each[1:])
            else:
                self.kept.append(each)


class _KeptToken:
    """The token of a message whose copy has found no room: its sender gets none for another, until it has.

    Where that was a copy itself, and is a dead letter now, its room as a copy stays taken.
    """

    __slots__ = ("_inbound", "_room")

    def __init__(self, inbound: InboundSession, room: _Room) -> None:
        self._inbound, self._room = inbound, room

    def release(self, task: int, messages: int, size_bytes: int) -> None:
        """See InboundSession."""
        if self._room.full:
            self._room.kept.append((self._inbound, task, messages, size_bytes))
        else:
            self._inbound.release(task, messages, size_bytes)


@dataclass(order=True, slots=True)
class Copy:
    """A copy of a rejected message. due: when to send it. settles: why the original is dropped, if it is."""

    due: float
    number: int
    group: TaskGroup = field(compare=False)
    settles: DropReason | None = field(compare=False)


@dataclass(frozen=True, slots=True)
class RejectionOutcome:
    """What a rejection has come to.

    done: the original, if it has left its queue. held_until: when it may be handed out again, if it has not.
    given_up: whether it comes no more; dropped: why, where no copy says so later.
    """

    done: Done | None = None
    held_until: float = 0.0
    given_up: bool = False
    dropped: DropReason | None = None


class RejectedMessages:
    """Those of all tasks of a worker.

    limit: after so many rejections a message goes to the dead-letter task; None: is dropped. own: the inbound
    session of the copies. most_messages, most_bytes: the room of copies to one task. Beyond it, the sender of
    what is rejected gets no room for more: it hears that a message is done with when there is room for its
    copy. So nothing that is queued ever waits for room, and memory is bounded by the senders' credit.
    """

    def __init__(
        self,
        limit: int,
        dead_letter_task: int | None,
        own: InboundSession,
        most_messages: int,
        most_bytes: int,
    ) -> None:
        self.dead_letter_task = dead_letter_task
        self.rejections = 0
        """How many there were."""
        self.hurried = False
        """Whether delays are over: the worker drains."""
        self._limit = limit
        self._own = own
        self._most_messages, self._most_bytes = most_messages, most_bytes
        self._waiting: list[Copy] = []
        self._numbers = count()
        self._rooms: dict[int, _Room] = {}

    def __len__(self) -> int:
        """Return how many copies wait here."""
        return len(self._waiting)

    # --- rejections ------------------------------------------------------------------------------

    def reject(
        self, log: DeliveryLog, each: Rejection, now: float, now_micros: int, *, leaves: bool = False
    ) -> RejectionOutcome | None:
        """Take the first unacknowledged message out of a log, or put the cursor back to it.

        Returns None where that is not the rejected one. now: in seconds; now_micros: since 1970. leaves:
        whether the task moves away, which waits until all of its messages are released.
        """
        found = log.oldest() if log.acknowledged == each.sequence - 1 else None
        if found is None:
            return None
        group, token = found
        self.rejections += 1
        due = now if self.hurried else now + each.after_seconds
        rejections = rejections_of(headers_of(group)[1]) + 1
        settles: DropReason | None = None
        if group.task == self.dead_letter_task:
            copy = group
        elif rejections < self._limit:
            copy = again(group, rejections)
        elif self.dead_letter_task is not None:
            copy = dead_letter(group, self.dead_letter_task, rejections, each.reason, now_micros)
            settles, due = DropReason.DEAD_LETTERED, now
        else:
            done = self._settle(log, each)
            return RejectionOutcome(done, given_up=True, dropped=DropReason.REJECTED)
        if each.wait and settles is None:
            grown = copy.size_bytes - group.size_bytes
            log.replace_oldest(copy, GrownMessage(token, grown) if grown else token)
            log.rewind(log.acknowledged)
            return RejectionOutcome(held_until=due)
        room = self._keep(copy, settles, due)
        done = self._settle(log, each)
        own = done.token is self._own or getattr(done.token, "origin", None) is self._own
        stays = own and copy.task == group.task  # it has its room already
        if room.full and not (stays or leaves or self.hurried):
            done = replace(done, token=_KeptToken(done.token, room))
        return RejectionOutcome(done, given_up=settles is not None)

    def bury(self, group: TaskGroup, count: int, reason: str, now: float, now_micros: int) -> bool:
        """Make a dead letter of a single message, of which its consumer has said so; False: there is no room.

        There is a dead-letter task. count: how often it was tried; the times are as for reject().
        """
        if self.dead_letter_task is None or self.is_full(self.dead_letter_task):
            return False
        letter = dead_letter(group, self.dead_letter_task, count, reason, now_micros)
        self._keep(letter, DropReason.DEAD_LETTERED, now)
        return True

    def _keep(self, copy: TaskGroup, settles: DropReason | None, due: float) -> _Room:
        """Keep a copy as a message of this worker's own; return the room that it takes."""
        own = copy.as_new()
        self.put_back(Copy(due, next(self._numbers), own, settles), due)
        room = self._rooms.setdefault(own.task, _Room())
        room.messages += 1
        room.size_bytes += own.size_bytes
        room.full |= room.used(self._most_messages, self._most_bytes) >= 1
        return room

    @staticmethod
    def _settle(log: DeliveryLog, each: Rejection) -> Done:
        [done] = log.progress(each.sequence, each.sequence)
        if each.wait:
            log.rewind(log.acknowledged)  # its consumer has thrown away what follows
        return replace(done, rejected=True)

    def is_full(self, task: int) -> bool:
        """Whether the copies to a task have no room; from any thread."""
        room = self._rooms.get(task)
        return room is not None and room.full

    def released(self, task: int, messages: int, size_bytes: int) -> None:
        """Take note of copies that were sent, and are done with."""
        room = self._rooms[task]
        room.messages -= messages
        room.size_bytes -= size_bytes
        if room.full and room.used(self._most_messages, self._most_bytes) <= _ROOM:
            room.full = False
            room.give_back()
        if not room.messages:
            del self._rooms[task]

    def give_back(self, task: int) -> None:
        """Tell the senders of a task that moves away of all that was rejected."""
        for room in list(self._rooms.values()):
            room.give_back(task)

    def hurry(self) -> None:
        """Wait for no delay and no room any more: the worker drains."""
        self.hurried = True
        for copy in self._waiting:
            copy.due = -math.inf
        heapq.heapify(self._waiting)
        for room in list(self._rooms.values()):
            room.give_back()

    # --- copies ----------------------------------------------------------------------------------

    @property
    def next_due(self) -> float | None:
        """When the next copy is due; None: there is none."""
        return self._waiting[0].due if self._waiting else None

    def take_due(self, now: float, most: int) -> list[Copy]:
        """Take out the copies that are due, at most so many, in the order in which they are."""
        due: list[Copy] = []
        while self._waiting and self._waiting[0].due <= now and len(due) < most:
            due.append(heapq.heappop(self._waiting))
        return due

    def put_back(self, copy: Copy, due: float) -> None:
        """Let a copy wait until another time."""
        copy.due = due
        heapq.heappush(self._waiting, copy)

    def held_groups(self) -> Iterator[TaskGroup]:
        """Return what waits here."""
        return (copy.group for copy in self._waiting)

    def clear(self) -> list[TaskGroup]:
        """Take out everything that waits."""
        groups = list(self.held_groups())
        self._waiting.clear()
        return groups
