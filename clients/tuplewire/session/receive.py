"""The receiving end of a session: accepts each frame once, in order."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from tuplewire.errors import RefusedError, ResourceLimitError, SequenceGapError
from tuplewire.session.credit import MAX_TASKS, CreditBook, Grant
from tuplewire.values.group import TaskGroup, route_of

REMEMBERED_FRAMES = 64
"""Refusals are told again after a break for as many frames; no more than this are under way at once."""
MOST_REFUSALS = 10_000
"""In one update, unless one frame has more: a stream carries messages of bounded size."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The messages of one frame to one task were refused, and why."""

    sequence: int
    task: int
    messages: int
    code: str
    detail: str
    owner: str = ""
    forwarded: int = 0
    """How they came, as in TaskGroup; with the task it names the flow."""


@dataclass(frozen=True, slots=True)
class AckUpdate:
    """News for the sender: accepted frames, changed grants, refused messages."""

    sequence: int
    grants: list[Grant]
    refusals: list[Refusal]
    after: int = 0
    """The refusals are those of all frames after this one."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The receiver's welcome, as far as the window needs it."""

    receiver_incarnation: int
    initial: Grant
    """Holds for every task without a grant of its own."""
    update: AckUpdate
    max_message_bytes: int
    """The largest payload that the receiver takes."""
    max_request_bytes: int
    """The largest request that the receiver takes."""
    assignment_version: int = 0
    """That of its assignment; 0: it has none."""
    worker_incarnation: int = 0
    """Differs after every restart of the receiver, whatever it remembers of the session; 0: not told."""


@dataclass(slots=True, eq=False)
class ReceiveSession:
    """State of one sender's session at its receiver; outlives the streams that carry it."""

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
        """Accept a frame and return its groups; None if it was accepted before.

        Groups to more tasks than a session may use at a time are refused, and are not among them.

        Args:
            sequence: The frame's number.
            groups: Its messages.
            denied: Groups that its sender may not send: refused, and nothing is remembered of them.
            closed: The flows that the sender has forgotten.

        Raises:
            SequenceGapError: Frames are missing before it.
            CreditExceededError: It holds more than was granted.
            MalformedError: It closes a flow that is in use.

        After an error the stream must end.
        """
        if sequence <= self.last_sequence:
            return None
        if sequence != self.last_sequence + 1:
            raise SequenceGapError(
                f"frame {sequence} came after frame {self.last_sequence}; resume the session"
            )
        credit = self.credit
        for flow in closed:
            credit.close(flow)
        if over := credit.too_many(groups):
            error: RefusedError = ResourceLimitError(
                f"one session sends to at most {MAX_TASKS} tasks at a time"
            )
            denied = [*denied, *((group, error) for group in over)]
        if denied:
            without = {id(group) for group, _ in denied}
            groups = [group for group in groups if id(group) not in without]
        credit.received(groups)
        self.last_sequence = sequence
        for group, error in denied:
            self._tell_refused(sequence, group, error)
        return groups

    def refuse(self, sequence: int, group: TaskGroup, error: RefusedError) -> None:
        """Refuse a group of an accepted frame: count it no more, and let the next update say why."""
        self.credit.refused(group)
        self._tell_refused(sequence, group, error)

    def _tell_refused(self, sequence: int, group: TaskGroup, error: RefusedError) -> None:
        refusal = Refusal(
            sequence, group.task, len(group), error.code, str(error), error.owner, route_of(group.forwarded)
        )
        self._refusals.append(refusal)
        while self._refusals[0].sequence <= self.last_sequence - REMEMBERED_FRAMES:
            self._refusals.popleft()
        self._new_refusals.append(refusal)

    def delivered(
        self,
        sequence: int,
        refusals: Iterable[tuple[TaskGroup, RefusedError]],
        done: Iterable[TaskGroup],
    ) -> None:
        """Note which groups of a frame the callback has refused, and which it has released already."""
        for group, error in refusals:
            self.refuse(sequence, group, error)
        for group in done:
            self.credit.released(group.flow, len(group), group.size_bytes)

    def update(self) -> AckUpdate | None:
        """Take out the news for the sender; None if there is none."""
        if self._asked is not None:
            return self.resume(self._asked)
        grants = self.credit.take_changes()
        refusals, sequence = self._next(self._new_refusals)
        if not grants and not refusals and self._reported == sequence:
            return None
        after, self._reported = self._reported, sequence
        return AckUpdate(sequence, grants, refusals, after)

    def _next(self, refusals: list[Refusal]) -> tuple[list[Refusal], int]:
        """Return as many refusals as go into one update, and the last frame that is told with them.

        A frame's refusals are told together; what there is of later frames is kept for the next update.
        """
        stop = len(refusals)
        if stop > MOST_REFUSALS:
            next_frame = refusals[MOST_REFUSALS].sequence
            stop = bisect_left(refusals, next_frame, key=attrgetter("sequence"))
            if not stop:
                stop = bisect_right(refusals, next_frame, key=attrgetter("sequence"))
        self._new_refusals = refusals[stop:]
        sequence = self._new_refusals[0].sequence - 1 if self._new_refusals else self.last_sequence
        return refusals[:stop], sequence

    @property
    def has_more(self) -> bool:
        """Whether there are refusals that did not go into the last update."""
        return bool(self._new_refusals)

    @property
    def pressing(self) -> bool:
        """Whether the sender can do something with the news: it was refused something, or has room again."""
        return bool(self._new_refusals) or self.credit.pressing

    def probe(self, acknowledged: int) -> None:
        """Let the next update say everything.

        acknowledged: the last frame whose acknowledgement has reached the sender.
        """
        self._asked = min(acknowledged, self.last_sequence)

    def resume(self, acknowledged: int) -> AckUpdate:
        """Return everything that a sender needs who has heard acknowledgements up to a frame.

        Where that is too much for one update, it is told less: what it then sends again is known here.
        """
        self._asked = None
        self.credit.take_changes()
        refusals, self._reported = self._next(
            [each for each in self._refusals if each.sequence > acknowledged]
        )
        return AckUpdate(self._reported, self.credit.all(), refusals, acknowledged)
