"""One task's receive queue: a log with a delivery cursor and an acknowledgement behind it.

Every message gets a sequence within the task, from 1. A consumer that comes back goes on where it stands;
one that does not leaves what it had not acknowledged, in order, to the next. Source: Storm's receive queue
(there a Disruptor ring without acknowledgement), with Kafka's consumer positions.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from tuplewire.message import TaskGroup


@dataclass(frozen=True, slots=True)
class Delivery:
    """Messages on their way to a consumer; the first has this sequence, the others follow by one."""

    first_sequence: int
    group: TaskGroup


@dataclass(frozen=True, slots=True)
class Done:
    """Messages that their consumer has acknowledged, and the token that came with them."""

    token: Any
    messages: int
    size_bytes: int


class _Entry:
    __slots__ = ("first", "group", "token")

    def __init__(self, first: int, group: TaskGroup, token: Any) -> None:
        self.first = first
        self.group = group
        self.token = token

    @property
    def last(self) -> int:
        return self.first + len(self.group) - 1


class DeliveryLog:
    """The queue of one task. Sequences count messages, from 1; 0 stands for "none"."""

    __slots__ = (
        "_delivered",
        "_marks",
        "_taken_bytes",
        "_waiting",
        "acknowledged",
        "queued_bytes",
        "received",
        "tail",
        "taken",
    )

    def __init__(self) -> None:
        self.tail = 0
        """The sequence of the last message that was appended."""
        self.taken = 0
        """The sequence of the last message that was handed out."""
        self.received = 0
        """The sequence of the last message that has arrived at the consumer, as far as we know."""
        self.acknowledged = 0
        """The sequence of the last message that is done with."""
        self.queued_bytes = 0
        """Payload bytes that are held: waiting, or not acknowledged."""
        self._waiting: deque[_Entry] = deque()
        self._delivered: deque[_Entry] = deque()
        self._marks: deque[tuple[int, int]] = deque()
        self._taken_bytes = 0

    @property
    def queued_messages(self) -> int:
        """Messages that are held: waiting, or not acknowledged."""
        return self.tail - self.acknowledged

    @property
    def waiting(self) -> bool:
        """Whether there is something that was not handed out."""
        return self.taken < self.tail

    def append(self, group: TaskGroup, token: Any = None) -> None:
        """Add messages at the tail; the token comes back when they are done with."""
        self._waiting.append(_Entry(self.tail + 1, group, token))
        self.tail += len(group)
        self.queued_bytes += len(group.data)

    def take(self, credit: int, credit_bytes: int, max_bytes: int) -> list[Delivery]:
        """Hand out messages from the cursor on.

        credit: up to this sequence. credit_bytes: a message may start while fewer bytes than this are on the
        way (handed out after `received`). max_bytes: likewise for this call.
        """
        deliveries: list[Delivery] = []
        room = min(credit_bytes - self._taken_bytes, max_bytes)
        while self._waiting and room > 0 and self.taken < credit:
            entry = self._waiting[0]
            count = min(len(entry.group), credit - self.taken)
            if len(entry.group.data) > room:
                starts = accumulate(entry.group.sizes(), initial=0)
                count = min(count, sum(start < room for start in list(starts)[:-1]))
            if count < len(entry.group):
                entry = self._split(entry, count)
            else:
                self._waiting.popleft()
            self._delivered.append(entry)
            self.taken = entry.last
            size = len(entry.group.data)
            room -= size
            self._taken_bytes += size
            self._marks.append((entry.last, size))
            deliveries.append(Delivery(entry.first, entry.group))
        return deliveries

    def _split(self, entry: _Entry, count: int) -> _Entry:
        group = entry.group
        self._waiting[0] = _Entry(entry.first + count, group.slice(count, len(group)), entry.token)
        return _Entry(entry.first, group.slice(0, count), entry.token)

    def progress(self, acknowledged: int, received: int) -> list[Done]:
        """Take the consumer's word for what has arrived and what is done with; return the latter.

        What it says beyond what was handed out is cut to that; what it says again changes nothing.
        """
        self.received = max(self.received, min(received, self.taken))
        while self._marks and self._marks[0][0] <= self.received:
            self._taken_bytes -= self._marks.popleft()[1]
        acknowledged = min(acknowledged, self.taken)
        done: list[Done] = []
        while self._delivered and self._delivered[0].first <= acknowledged:
            entry = self._delivered[0]
            if entry.last > acknowledged:
                count = acknowledged - entry.first + 1
                size = sum(entry.group.sizes()[:count])
                rest = entry.group.slice(count, len(entry.group))
                self._delivered[0] = _Entry(acknowledged + 1, rest, entry.token)
            else:
                count, size = len(entry.group), len(entry.group.data)
                self._delivered.popleft()
            done.append(Done(entry.token, count, size))
            self.queued_bytes -= size
        self.acknowledged = max(self.acknowledged, acknowledged)
        return done

    def rewind(self, received: int | None = None) -> None:
        """Put the cursor back: to what a returning consumer has received, or else to what is acknowledged.

        What goes to another consumer is marked as redelivered.
        """
        position = (
            self.acknowledged if received is None else max(self.acknowledged, min(received, self.taken))
        )
        while self._delivered and self._delivered[-1].last > position:
            entry = self._delivered.pop()
            if entry.first <= position:
                count = position - entry.first + 1
                group = entry.group
                self._delivered.append(_Entry(entry.first, group.slice(0, count), entry.token))
                entry = _Entry(position + 1, group.slice(count, len(group)), entry.token)
            if received is None:
                entry.group = entry.group.as_redelivered()
            self._waiting.appendleft(entry)
        self.taken = self.received = position
        self._marks.clear()
        self._taken_bytes = 0

    def remove(self) -> list[tuple[TaskGroup, Any]]:
        """Take out everything that is not acknowledged, in order, each with its token."""
        self.rewind()
        left = [(entry.group, entry.token) for entry in self._waiting]
        self._waiting.clear()
        self.acknowledged = self.received = self.taken = self.tail
        self.queued_bytes = 0
        return left
