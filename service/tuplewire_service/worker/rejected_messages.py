"""What becomes of messages that consumers reject: they come again, or go to the dead-letter task.

Copies that come again behind later messages, and dead letters, wait here until they are sent. Pure state, in
which times are arguments. The rules: docs/decisions/0067-rejected-messages.md.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count

from tuplewire.dead_letters import again, dead_letter, headers_of, rejections_of
from tuplewire.group import TaskGroup
from tuplewire.session.delivery import DeliveryLog, Done
from tuplewire.session.ledger import DropReason
from tuplewire.session.rejection import Rejection
from tuplewire_service.messaging.base import InboundSession

_ROOM = 0.5
"""Once full, the copies have room again when they take no more than this share of it."""


class GrownMessage:
    """The inbound session of a message that has got longer here: its sender is told of what it had sent."""

    __slots__ = ("_grown_bytes", "_inbound", "sender_id", "source", "wants_releases", "worker_number")

    def __init__(self, inbound: InboundSession, grown_bytes: int) -> None:
        self.source, self.sender_id = inbound.source, inbound.sender_id
        self.worker_number = inbound.worker_number
        self.wants_releases = inbound.wants_releases
        self._inbound = inbound
        self._grown_bytes = grown_bytes

    def release(self, task: int, messages: int, size_bytes: int) -> None:
        """See InboundSession."""
        self._inbound.release(task, messages, size_bytes - self._grown_bytes)


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

    limit: after so many rejections a message goes to the dead-letter task; None: is dropped. most_messages,
    most_bytes: when `full` says that consumers which reject are to get nothing more; it goes by copies that
    wait here, or were sent and are not released.
    """

    def __init__(self, limit: int, dead_letter_task: int | None, most_messages: int, most_bytes: int) -> None:
        self.dead_letter_task = dead_letter_task
        self.rejections = 0
        """How many there were."""
        self.hurried = False
        """Whether delays are over: the worker drains."""
        self.full = False
        self._limit = limit
        self._most_messages, self._most_bytes = most_messages, most_bytes
        self._waiting: list[Copy] = []
        self._numbers = count()
        self._held_messages = self._held_bytes = 0

    def __len__(self) -> int:
        """Return how many copies wait here."""
        return len(self._waiting)

    # --- rejections ------------------------------------------------------------------------------

    def reject(
        self, log: DeliveryLog, each: Rejection, now: float, now_micros: int
    ) -> RejectionOutcome | None:
        """Take the first unacknowledged message out of a log, or put the cursor back to it.

        Returns None where that is not the rejected one. now: in seconds; now_micros: since 1970.
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
        self._keep(copy, settles, due)
        return RejectionOutcome(self._settle(log, each), given_up=settles is not None)

    def bury(self, group: TaskGroup, count: int, reason: str, now: float, now_micros: int) -> bool:
        """Make a dead letter of a single message, of which its consumer has said so; False: there is no room.

        There is a dead-letter task. count: how often it was tried; the times are as for reject().
        """
        if self.full or self.dead_letter_task is None:
            return False
        letter = dead_letter(group, self.dead_letter_task, count, reason, now_micros)
        self._keep(letter, DropReason.DEAD_LETTERED, now)
        return True

    def _keep(self, copy: TaskGroup, settles: DropReason | None, due: float) -> None:
        """Keep a copy as a message of this worker's own."""
        own = TaskGroup(
            copy.task,
            copy.source,
            copy.lengths,
            copy.data,
            accepted_micros=copy.accepted_micros,
            header_lengths=copy.header_lengths,
            header_data=copy.header_data,
        )
        self._hold(own)
        self.put_back(Copy(due, next(self._numbers), own, settles), due)

    @staticmethod
    def _settle(log: DeliveryLog, each: Rejection) -> Done:
        [done] = log.progress(each.sequence, each.sequence)
        if each.wait:
            log.rewind(log.acknowledged)  # its consumer has thrown away what follows
        return replace(done, rejected=True)

    def _hold(self, group: TaskGroup) -> None:
        self._held_messages += 1
        self._held_bytes += group.size_bytes
        if self._held_messages >= self._most_messages or self._held_bytes >= self._most_bytes:
            self.full = True

    def released(self, messages: int, size_bytes: int) -> None:
        """Take note of copies that were sent, and are done with."""
        self._held_messages -= messages
        self._held_bytes -= size_bytes
        room = self._held_messages <= self._most_messages * _ROOM
        if room and self._held_bytes <= self._most_bytes * _ROOM:
            self.full = False

    # --- copies ----------------------------------------------------------------------------------

    @property
    def next_due(self) -> float | None:
        """When the next copy is due; None: there is none."""
        return self._waiting[0].due if self._waiting else None

    def take_due(self, now: float) -> list[Copy]:
        """Take out the copies that are due, in the order in which they are."""
        due = []
        while self._waiting and (self.hurried or self._waiting[0].due <= now):
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
