"""The receiving end of a session: accepts each frame once, in order.

Pure state without I/O and clock. Servers keep one ReceiveSession for each sender
(messaging/receiving_end.py). Owns the last accepted frame, recent refusals, and the credit.
Call only from the event loop.

Design: docs/design/sessions.md.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from tuplewire.errors import RefusedError, ResourceLimitError, SequenceGapError
from tuplewire.session.credit import MAX_TASKS, CreditBook
from tuplewire.values.group import TaskGroup, route_of
from tuplewire.wire.messaging_pb2 import Ack, Refusal

REMEMBERED_FRAMES = 64
"""The number of frames with refusals that are repeated after a reconnect. At most 64 frames are in flight."""
MOST_REFUSALS = 10_000
"""The maximum number of refusals in one update, unless one frame has more. Bounds the size of the update."""
_MOST_WORDS = 1 << 18
"""Limit for the characters in the texts of all refusals of one update."""


@dataclass(slots=True, eq=False)
class ReceiveSession:
    """The receiver's state of one session, which may use several streams in turn.

    Call only from the event loop.
    """

    sender_id: str
    incarnation: int
    credit: CreditBook
    last_sequence: int = 0
    """The last frame that was accepted."""
    _reported: int = 0
    _asked: int | None = None
    _refusals: deque[Refusal] = field(default_factory=deque)
    _new_refusals: list[Refusal] = field(default_factory=list)

    def accept(
        self,
        sequence: int,
        groups: Sequence[TaskGroup],
        denied: Sequence[tuple[TaskGroup, RefusedError]] = (),
        closed: Iterable[int] = (),
    ) -> Sequence[TaskGroup] | None:
        """Accept a frame and return its accepted groups; None if the frame was accepted before.

        Groups to tasks beyond MAX_TASKS are refused and are not returned. After an error the stream must end.

        Args:
            sequence: The frame's number.
            groups: Its messages.
            denied: Groups that the sender has no permission to send. They are refused without being counted.
            closed: The flows that the sender has closed.

        Raises:
            SequenceGapError: Frames before this one are missing.
            CreditExceededError: The frame contains more messages than were granted.
            MalformedError: The frame closes a flow that is in use.
        """
        if sequence <= self.last_sequence:
            return None  # sent again after a reconnect
        if sequence != self.last_sequence + 1:
            raise SequenceGapError(
                f"frame {sequence} came after frame {self.last_sequence}; resume the session"
            )
        credit = self.credit
        # Close before counting: the frame may use a closed flow again, with new counts.
        for flow in closed:
            credit.close(flow)
        # Refuse only these groups, so that the stream and the other tasks continue.
        if over := credit.too_many(groups):
            error: RefusedError = ResourceLimitError(
                f"one session sends to at most {MAX_TASKS} tasks at a time"
            )
            denied = [*denied, *((group, error) for group in over)]
        if denied:
            without = {id(group) for group, _ in denied}
            groups = [group for group in groups if id(group) not in without]
        credit.received(groups)  # may raise, and the frame is then not accepted
        self.last_sequence = sequence
        for group, error in denied:
            self._tell_refused(sequence, group, error)
        return groups

    def refuse(self, sequence: int, group: TaskGroup, error: RefusedError) -> None:
        """Refuse a group of an accepted frame: it no longer counts, and the next update reports it."""
        self.credit.refused(group)
        self._tell_refused(sequence, group, error)

    def _tell_refused(self, sequence: int, group: TaskGroup, error: RefusedError) -> None:
        refusal = Refusal(
            sequence=sequence,
            task=group.task,
            messages=len(group),
            code=f"ERROR_CODE_{error.code}",
            detail=str(error),
            owner=error.owner,
            forwarded=route_of(group.forwarded),
        )
        self._refusals.append(refusal)
        # At most 64 frames are in flight, so the sender knows the outcome of all older frames.
        while self._refusals[0].sequence <= self.last_sequence - REMEMBERED_FRAMES:
            self._refusals.popleft()
        self._new_refusals.append(refusal)

    def delivered(
        self,
        sequence: int,
        refusals: Iterable[tuple[TaskGroup, RefusedError]],
        done: Iterable[TaskGroup],
    ) -> None:
        """Record the groups of a frame that the callback has refused, and the groups it has released."""
        for group, error in refusals:
            self.refuse(sequence, group, error)
        for group in done:
            self.credit.released(group.flow, len(group), group.size_bytes)

    def update(self) -> Ack | None:
        """Return and clear the changes since the last update; None if there are none."""
        if self._asked is not None:
            return self.resume(self._asked)
        grants = self.credit.take_changes()
        refusals, sequence = self._next(self._new_refusals)
        if not grants and not refusals and self._reported == sequence:
            return None
        after, self._reported = self._reported, sequence
        return Ack(sequence=sequence, credits=grants, refusals=refusals, after=after)

    def _next(self, refusals: list[Refusal]) -> tuple[list[Refusal], int]:
        """Return the refusals for one update, and the last frame that the update acknowledges.

        All refusals of a frame are in the same update. Refusals of later frames wait for the next update.
        """
        stop = len(refusals)
        if stop > MOST_REFUSALS:
            next_frame = refusals[MOST_REFUSALS].sequence
            stop = bisect_left(refusals, next_frame, key=attrgetter("sequence"))
            if not stop:  # one frame has more refusals than the limit
                stop = bisect_right(refusals, next_frame, key=attrgetter("sequence"))
        self._new_refusals = refusals[stop:]
        # Acknowledging a frame without its refusals would count its refused messages as delivered.
        sequence = self._new_refusals[0].sequence - 1 if self._new_refusals else self.last_sequence
        return _shortened(refusals[:stop]), sequence

    @property
    def has_more(self) -> bool:
        """True if some refusals did not fit into the last update."""
        return bool(self._new_refusals)

    @property
    def pressing(self) -> bool:
        """True if the update should be sent immediately: it has refusals, or credit for a blocked sender."""
        return bool(self._new_refusals) or self.credit.pressing

    def probe(self, acknowledged: int) -> None:
        """Make the next update contain the full state.

        `acknowledged` is the last frame that the sender knows to be acknowledged.
        """
        self._asked = min(acknowledged, self.last_sequence)

    def resume(self, acknowledged: int) -> Ack:
        """Return the full state for a sender that knows the acknowledgements up to a frame.

        If this is too large for one update, the update acknowledges fewer frames. The sender then repeats
        later frames, and accept() recognizes them as duplicates.
        """
        self._asked = None
        self.credit.take_changes()  # credit.all() below contains these grants
        refusals, self._reported = self._next(
            [each for each in self._refusals if each.sequence > acknowledged]
        )
        return Ack(sequence=self._reported, credits=self.credit.all(), refusals=refusals, after=acknowledged)


def _shortened(refusals: list[Refusal]) -> list[Refusal]:
    """Return refusals for one update. If their texts are too long, later refusals have no text."""
    room = _MOST_WORDS
    for index, each in enumerate(refusals):
        room -= len(each.detail) + len(each.owner)
        if room < 0:
            short = refusals[index] = Refusal()
            short.CopyFrom(each)
            short.ClearField("detail")
            short.ClearField("owner")
    return refusals
