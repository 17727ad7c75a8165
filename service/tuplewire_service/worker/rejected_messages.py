"""Copies of rejected messages, the space that they take, and the tokens of the originals."""

from __future__ import annotations

from dataclasses import dataclass, field

from tuplewire.session.delivery import Done
from tuplewire.session.ledger import DropReason
from tuplewire.values.group import TaskGroup
from tuplewire_service.messaging.base import InboundSession

_COPY_BYTES = 512
"""Memory for a copy in addition to its payload and headers."""


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
class CopyRoom:
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


class KeptToken:
    """The token of a message whose copy has found no room: its sender gets none for another, until it has.

    Where that was a copy itself, and is a dead letter now, its room as a copy stays taken.
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
