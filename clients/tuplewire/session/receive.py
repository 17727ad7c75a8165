"""The receiving end of a session: accepts each frame once, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from tuplewire.errors import RefusedError, SequenceGapError
from tuplewire.group import TaskGroup
from tuplewire.session.credit import CreditBook, Grant

REMEMBERED_FRAMES = 64
"""Refusals are told again after a break for as many frames; no more than this are under way at once."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """All messages of a frame to one task were not taken, and why."""

    sequence: int
    task: int
    messages: int
    code: str
    detail: str
    owner: str = ""


@dataclass(frozen=True, slots=True)
class AckUpdate:
    """What the sender should hear: frames accepted, grants changed, messages refused."""

    sequence: int
    grants: list[Grant]
    refusals: list[Refusal]
    after: int = 0
    """The refusals are all those of the frames after this one."""


class ReceiveSession:
    """State of one sender's session at its receiver; outlives the streams that carry it."""

    __slots__ = (
        "_asked",
        "_new_refusals",
        "_refusals",
        "_told",
        "credit",
        "incarnation",
        "last_sequence",
        "sender_id",
    )

    def __init__(self, sender_id: str, incarnation: int, credit: CreditBook) -> None:
        self.sender_id = sender_id
        self.incarnation = incarnation
        self.credit = credit
        self.last_sequence = 0
        """The last frame that was accepted."""
        self._told = 0
        self._asked: int | None = None
        self._refusals: deque[Refusal] = deque()
        self._new_refusals: list[Refusal] = []

    def accept(self, sequence: int, groups: Iterable[TaskGroup]) -> bool:
        """Take a frame in; return False for one that was accepted before.

        Raises SequenceGapError when frames are missing before it, CreditExceededError when it holds more
        than was granted, ResourceLimitError when it is for too many tasks. After an error the stream must
        end; nothing of the frame was taken, and the session may be resumed.
        """
        if sequence <= self.last_sequence:
            return False
        if sequence != self.last_sequence + 1:
            raise SequenceGapError(
                f"frame {sequence} came after frame {self.last_sequence}; resume the session"
            )
        self.credit.received(groups)
        self.last_sequence = sequence
        return True

    def refuse(self, sequence: int, group: TaskGroup, error: RefusedError) -> None:
        """Send a group of an accepted frame back; it is done with, and its sender is told."""
        refusal = Refusal(sequence, group.task, len(group), error.code, str(error), error.owner)
        self._refusals.append(refusal)
        while self._refusals[0].sequence <= self.last_sequence - REMEMBERED_FRAMES:
            self._refusals.popleft()
        self._new_refusals.append(refusal)
        self.credit.released(group.lane, len(group), len(group.data))

    def delivered(
        self,
        sequence: int,
        refusals: Iterable[tuple[TaskGroup, RefusedError]],
        done: Iterable[TaskGroup],
    ) -> None:
        """Take account of what a frame's receiver has refused, and of what it is done with."""
        for group, error in refusals:
            self.refuse(sequence, group, error)
        for group in done:
            self.credit.released(group.lane, len(group), len(group.data))

    def update(self) -> AckUpdate | None:
        """Return what the sender should hear now; None when it has heard everything."""
        if self._asked is not None:
            return self.resume(self._asked)
        grants = self.credit.changes()
        refusals, self._new_refusals = self._new_refusals, []
        if not grants and not refusals and self._told == self.last_sequence:
            return None
        after, self._told = self._told, self.last_sequence
        return AckUpdate(self.last_sequence, grants, refusals, after)

    def probe(self, acknowledged: int) -> None:
        """Let the next update say everything, to a sender who has heard acknowledgements up to a frame."""
        self._asked = min(acknowledged, self.last_sequence)

    def resume(self, acknowledged: int) -> AckUpdate:
        """Return everything that a sender needs who has heard acknowledgements up to a frame."""
        self._new_refusals = []
        self._told = self.last_sequence
        self._asked = None
        self.credit.changes()
        refusals = [refusal for refusal in self._refusals if refusal.sequence > acknowledged]
        return AckUpdate(self.last_sequence, self.credit.all(), refusals, acknowledged)
