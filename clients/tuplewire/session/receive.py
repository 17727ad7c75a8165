"""The receiving end of a session: accepts each frame once, in order.

Used by servers, which have one ReceiveSession for each sender (messaging/sender_sessions.py). Owns the last
accepted frame, recent refusals, and the credit. No I/O. Call only from the event loop.
Design: docs/design/sessions.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from tuplewire.errors import RefusedError, ResourceLimitError, SequenceGapError
from tuplewire.session.credit import MAX_TASKS, SessionCredit
from tuplewire.values.group import TaskGroup, flow_path_of
from tuplewire.wire.messaging_pb2 import Ack, Refusal, TaskCredit

REMEMBERED_FRAMES = 64
"""Refusals of this many frames are stored for a reconnect, because at most 64 frames are in flight."""
MAX_REFUSALS = 10_000
"""The maximum number of refusals in one update, unless one frame has more. Bounds the size of the update."""
_MAX_TEXT_CHARS = 1 << 18
"""Limit for the characters in the texts of all refusals of one update."""


@dataclass(slots=True, eq=False)
class ReceiveSession:
    """The receiver's state of one session, which may use several streams in turn."""

    incarnation: int
    credit: SessionCredit
    last_sequence: int = 0
    """The last frame that was accepted."""
    _last_reported: int = 0
    _full_state_after: int | None = None
    _refusals: deque[Refusal] = field(default_factory=deque)

    def accept(
        self,
        sequence: int,
        groups: Sequence[TaskGroup],
        denied_groups: Sequence[tuple[TaskGroup, RefusedError]] = (),
        closed_flows: Iterable[int] = (),
    ) -> Sequence[TaskGroup] | None:
        """Accept a frame and return its accepted groups; None if the frame was accepted before.

        1. A repeated frame is ignored.
        2. After a gap, raise SequenceGapError. After any error the stream must end.
        3. Groups without permission (`denied_groups`) and groups to tasks beyond MAX_TASKS are refused. They
           are neither counted nor returned.
        4. All other groups are accepted.

        Raises CreditExceededError if the frame contains more messages or bytes than were granted, and
        MalformedError if it closes a flow that is in use.
        """
        # 1. The frame arrived over an earlier stream, and its acknowledgement was lost or delayed.
        if sequence <= self.last_sequence:
            return None
        # 2. The next stream starts after the last accepted frame, and so closes the gap.
        if sequence != self.last_sequence + 1:
            text = f"frame {sequence} came after frame {self.last_sequence}; resume the session"
            raise SequenceGapError(text)
        credit = self.credit
        # Close before counting: the frame may use a closed flow again, with new counts.
        for flow_id in closed_flows:
            credit.close_flow(flow_id)
        # 3. Refuse only these groups, so that the stream and the other tasks continue.
        if len(groups) + len(credit.accounts) > MAX_TASKS and (over := credit.groups_over_limit(groups)):
            error: RefusedError = ResourceLimitError(f"over {MAX_TASKS} tasks in a session; use two clients")
            denied_groups = [*denied_groups, *((group, error) for group in over)]
        if denied_groups:
            denied_ids = {id(group) for group, _ in denied_groups}
            groups = [group for group in groups if id(group) not in denied_ids]
        # 4. If this raises an error, the frame is not accepted.
        credit.on_received(groups)
        self.last_sequence = sequence
        for group, error in denied_groups:
            self._report_refused(sequence, group, error)
        return groups

    def refuse(self, sequence: int, group: TaskGroup, error: RefusedError) -> None:
        """Refuse a group of an accepted frame: it no longer counts, and the next update reports it."""
        self.credit.on_refused(group)
        self._report_refused(sequence, group, error)

    def _report_refused(self, sequence: int, group: TaskGroup, error: RefusedError) -> None:
        refusal = Refusal(
            frame_sequence=sequence,
            task=group.task,
            messages=group.count,
            code=f"ERROR_CODE_{error.code}",
            detail=str(error),
            owner_address=error.owner,
            flow_path=flow_path_of(group.path),
        )
        self._refusals.append(refusal)
        # At most 64 frames are in flight, so the sender knows the outcome of all older frames.
        while self._refusals[0].frame_sequence <= self.last_sequence - REMEMBERED_FRAMES:
            self._refusals.popleft()

    def next_ack(self) -> Ack | None:
        """Return and clear the changes since the last update; None if there are none."""
        if self._full_state_after is not None:
            return self.build_full_state(self._full_state_after)
        grants = self.credit.take_changes()
        if not grants and self._last_reported == self.last_sequence:
            return None
        return self._build_ack(self._last_reported, grants)

    def _build_ack(self, after: int, grants: list[TaskCredit]) -> Ack:
        """Return an update for a sender that knows the acknowledgements up to the frame `after`.

        All refusals of a frame are in the same update. Refusals of later frames wait for the next update.
        """
        self._last_reported = self.last_sequence
        if not self._refusals:
            return Ack(sequence=self._last_reported, credits=grants, previous_sequence=after)
        refusals = list(takewhile(lambda each: each.frame_sequence > after, reversed(self._refusals)))[::-1]
        if len(refusals) > MAX_REFUSALS:
            # The first frame is always complete, so that the sender makes progress.
            last = max(refusals[0].frame_sequence, refusals[MAX_REFUSALS].frame_sequence - 1)
            # Acknowledging a frame without its refusals would count its refused messages as delivered.
            if later := [each for each in refusals if each.frame_sequence > last]:
                self._last_reported = later[0].frame_sequence - 1
            del refusals[len(refusals) - len(later) :]
        _shorten_texts(refusals)
        return Ack(sequence=self._last_reported, credits=grants, refusals=refusals, previous_sequence=after)

    @property
    def has_more(self) -> bool:
        """True if refusals wait for the next update."""
        return bool(self._refusals) and self._refusals[-1].frame_sequence > self._last_reported

    @property
    def urgent(self) -> bool:
        """True if the update should be sent immediately: it has refusals, or credit for a blocked sender."""
        return bool((self._refusals and self.has_more) or (self.credit.blocked_flows and self.credit.urgent))

    def request_full_state(self, acknowledged: int) -> None:
        """Make the next update contain the full state. The sender knows the frames up to `acknowledged`."""
        self._full_state_after = min(acknowledged, self.last_sequence)

    def build_full_state(self, acknowledged: int) -> Ack:
        """Return the full state for a sender that knows the acknowledgements up to a frame.

        If this is too large for one update, the update acknowledges fewer frames. The sender then repeats
        later frames, and accept() recognizes them as duplicates.
        """
        self._full_state_after = None
        self.credit.take_changes()  # credit.all_grants() below contains these grants
        return self._build_ack(acknowledged, self.credit.all_grants())


def _shorten_texts(refusals: list[Refusal]) -> None:
    """Replace refusals of one update: if their texts are too long, later refusals have no text."""
    remaining = _MAX_TEXT_CHARS
    for index, each in enumerate(refusals):
        remaining -= len(each.detail) + len(each.owner_address)
        if remaining < 0:
            short = refusals[index] = Refusal()
            short.CopyFrom(each)
            short.ClearField("detail")
            short.ClearField("owner_address")
