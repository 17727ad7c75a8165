"""Copies of rejected messages, their space, and the tokens of the originals.

Used by rejections.py. Owns no state of its own. Call only from the event loop. Design: docs/design/acking.md
(rejected messages).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tuplewire.session.ledger import DropReason
from tuplewire.values.group import TaskGroup
from tuplewire_service.messaging.base import InboundSession

_COPY_BYTES = 512
"""Memory for a copy in addition to its payload and headers."""


class GrownMessage:
    """The inbound session of a message that grew here. Releases to its sender use the original size."""

    __slots__ = ("_grown_bytes", "_inbound", "origin", "sender_id", "wants_releases", "worker_number")

    def __init__(self, inbound: InboundSession, grown_bytes: int) -> None:
        self.sender_id = inbound.sender_id
        self.worker_number = inbound.worker_number
        self.wants_releases = inbound.wants_releases
        self._inbound = inbound
        self._grown_bytes = grown_bytes
        # A message may grow with each rejection.
        self.origin: InboundSession = inbound.origin if isinstance(inbound, GrownMessage) else inbound
        """The original inbound session."""

    def release(self, task: int, messages: int, size_bytes: int) -> None:
        """See InboundSession."""
        self._inbound.release(task, messages, size_bytes - self._grown_bytes)


@dataclass(slots=True, eq=False)
class CopyRoom:
    """The usage of a task's copies: waiting copies, and sent copies that are not released.

    `kept` holds the arguments of release() calls that wait until there is space again.
    """

    messages: int = 0
    size_bytes: int = 0
    full: bool = False
    kept: list[tuple[InboundSession, int, int, int]] = field(default_factory=list)

    def used(self, most_messages: int, most_bytes: int) -> float:
        """Return the used share of the space, from 0; 1 or more is full."""
        taken_bytes = self.size_bytes + _COPY_BYTES * self.messages
        return max(self.messages / most_messages, taken_bytes / most_bytes)

    def give_back(self, task: int | None = None) -> None:
        """Release the waiting originals to their senders; with `task`, only messages to this task."""
        kept, self.kept = self.kept, []
        for each in kept:
            if task is None or each[1] == task:
                each[0].release(*each[1:])
            else:
                self.kept.append(each)


class KeptToken:
    """The token of a message whose copy exceeded the limit: its release waits for space.

    If the message was itself a copy and is now a dead letter, its space as a copy stays occupied.
    """

    __slots__ = ("_inbound", "_room")

    def __init__(self, inbound: InboundSession, room: CopyRoom) -> None:
        self._inbound, self._room = inbound, room

    def release(self, task: int, messages: int, size_bytes: int) -> None:
        """See InboundSession."""
        if self._room.full:
            self._room.kept.append((self._inbound, task, messages, size_bytes))
        else:
            self._inbound.release(task, messages, size_bytes)


@dataclass(order=True, slots=True)
class Copy:
    """A copy of a rejected message.

    Attributes:
        due: The time to send it.
        settles: The reason for which the original is dropped, if any.
    """

    due: float
    number: int
    group: TaskGroup = field(compare=False)
    settles: DropReason | None = field(compare=False)
