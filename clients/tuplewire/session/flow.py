"""Flows and frames: the messages of a sender, by task and by frame.

A message is in a flow while it waits for credit, in a frame while it is in flight, and in the flow again if
it is retained until it is processed. Used by SendSession and PendingMessages, and by the transports, which
write OutFrames. Owns the entries of a flow or frame. Not thread-safe. Design: docs/design/credit.md.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tuplewire.session.ledger import SettledMessages
from tuplewire.session.pieces import count_within, split_head, wire_bytes
from tuplewire.values.group import MAX_FRAME_GROUPS, TaskGroup, same_millisecond


@dataclass(slots=True, eq=False)
class PendingEntry:
    """Pending messages of one flow: the messages of a batch, or a part of them."""

    group: TaskGroup
    inbound: Any
    """See SettledMessages."""
    order: int
    """The order of acceptance, from 1: lower is older. 0 once the entry was written and may have arrived."""
    retain: bool
    accepted_micros: int
    """See TaskGroup. A group without a time was accepted by this process."""

    @property
    def messages(self) -> int:
        """The number of messages."""
        return self.group.count

    def with_group(self, group: TaskGroup) -> PendingEntry:
        """Return this entry with other messages."""
        return PendingEntry(group, self.inbound, self.order, self.retain, self.accepted_micros)


@dataclass(slots=True, eq=False)
class Flow:
    """Messages to a task, or forwarded to it on one path, with their own credit; see TaskGroup.flow_id."""

    path: int
    """See flow_path_of()."""
    first_frame: int
    """The first frame of this flow. Grants from before the receiver accepted it are for a closed flow with
    the same id, and are ignored."""
    recently_used: bool = True
    """True if the flow was used since the last call to SendSession.close_unused()."""
    waiting: deque[PendingEntry] = field(default_factory=deque)
    unreleased: deque[PendingEntry | SettledMessages] = field(default_factory=deque)
    """Acknowledged messages that the receiver has not released, in order. A PendingEntry is retained here;
    SettledMessages were settled by the acknowledgement."""
    highest_entry_sequence: int = 0
    """The highest entry_sequence that was accepted since the flow had no unreleased messages; 0 if none."""
    pending_messages: int = 0
    written: int = 0
    """The number of unsettled messages that were written and may have arrived."""
    written_bytes: int = 0
    removed_count: int = 0
    """The number of released messages that have left `unreleased`, by whole entries."""
    released_messages: int = 0
    sent_messages: int = 0
    sent_bytes: int = 0
    granted_messages: int = 0
    granted_bytes: int = 0

    @property
    def all_released(self) -> bool:
        """True if the receiver has released all accepted messages of the flow."""
        return not self.pending_messages and self.released_messages >= self.sent_messages

    @property
    def receiver_only_count(self) -> int:
        """The number of sent messages that were not released and are not retained here until processed."""
        count, before = max(0, self.sent_messages - self.released_messages), self.removed_count
        # A release may end within an entry, so a part of the entry may already be released.
        for each in self.unreleased:
            if isinstance(each, PendingEntry):  # retained here, so it is not lost if the receiver fails
                count -= min(each.messages, max(0, before + each.messages - self.released_messages))
            before += each.messages
        return count

    @property
    def has_credit(self) -> bool:
        """True if another message may be sent."""
        return self.sent_messages < self.granted_messages and self.sent_bytes < self.granted_bytes

    @property
    def first_unwritten_index(self) -> int:
        """The index in `waiting` of the first entry that was never written."""
        pending = self.waiting
        # Written entries (order 0) are in front of the others.
        return 0 if pending and pending[0].order else bisect_left(pending, 1, key=lambda entry: entry.order)

    @property
    def first_unwritten_order(self) -> int:
        """The order of the first entry that was never written; 0 if there is none."""
        first = self.first_unwritten_index
        return self.waiting[first].order if first < len(self.waiting) else 0

    def move_to_frame(self, entries: list[PendingEntry], free_bytes: int) -> int:
        """Move messages with credit into a frame; return its free space in bytes, 0 if it is full.

        1. The frame has no space for the next entry: it is full.
        2. The flow has no credit: other flows may use the free space.
        3. The credit is less than the entry: send only the part with credit.
        4. Otherwise, send the whole entry.
        """
        pending = self.waiting
        while pending:
            entry = pending[0]
            group = entry.group
            count, size = group.count, group.size_bytes
            # 1. A frame takes at least one entry, so an entry above the frame's size is sent alone.
            if entries and (wire_bytes(group) > free_bytes or len(entries) >= MAX_FRAME_GROUPS):
                return 0
            allowed = self.granted_messages - self.sent_messages
            allowed_bytes = self.granted_bytes - self.sent_bytes
            # 2. Tasks are independent: one without credit must not block the others.
            if allowed <= 0 or allowed_bytes <= 0:
                return free_bytes
            # 3. The last message may start within the granted bytes and exceed them.
            if count > allowed or size > allowed_bytes:
                allowed = min(allowed, count_within(group, allowed_bytes))
                if allowed < count:
                    pieces = [entry.with_group(piece) for piece in split_head(group, allowed)]
                    pending.popleft()
                    pending.extendleft(reversed(pieces))
                    entry = pieces[0]
                    count, size = allowed, entry.group.size_bytes
            pending.popleft()  # 4.
            entries.append(entry)
            self.sent_messages += count
            self.sent_bytes += size
            if entry.order:  # the first write: the messages may have arrived, and drop_oldest must keep them
                entry.order = 0
                self.written += count
                self.written_bytes += size
            free_bytes -= wire_bytes(entry.group)
        return free_bytes


@dataclass(slots=True, eq=False)
class OutFrame:
    """A frame to write: runs of groups, each run one (task, source) on the wire."""

    sequence: int
    runs: Sequence[Sequence[TaskGroup]]
    accepted_micros: Sequence[int]
    """The time of acceptance of each run's first message; see TaskGroup.accepted_micros."""
    messages: int
    size_bytes: int
    closed_flows: Sequence[int] = ()
    """The flows that the receiver removes before it accepts the messages."""
    ack_immediately: bool = False
    """True if the receiver must acknowledge the frame immediately."""
    assignment_version: int = 0
    """The version of the assignment that the messages are routed by; 0: none. Set when it is written."""

    def groups(self) -> list[TaskGroup]:
        """Return the groups, each with its time of acceptance, for transports that do not encode them."""
        timed = zip(self.runs, self.accepted_micros, strict=True)
        return [group.with_default_time(micros) for run, micros in timed for group in run]


@dataclass(slots=True, eq=False)
class InFlightFrame:
    """An unacknowledged frame."""

    sequence: int
    entries: list[PendingEntry]
    closed_flows: Sequence[int] = ()
    ack_requested: bool = False

    def to_out_frame(self) -> OutFrame:
        """Return the frame to write. Consecutive groups of one (task, source) are joined to a run."""
        runs: list[list[TaskGroup]] = []
        accepted: list[int] = []
        messages = size = 0
        last: TaskGroup | None = None
        first_micros = self.entries[0].accepted_micros if self.entries else 0
        for entry in self.entries:
            group = entry.group
            messages += group.count
            size += group.size_bytes
            micros = entry.accepted_micros
            # A frame contains the time of its first message once, and a run only a different time.
            if micros != first_micros and same_millisecond(micros, first_micros):
                micros = first_micros
            # A run has only the entry sequence of its first message, so it ends at a gap.
            if (
                last is not None
                and group.can_follow(last)
                and group.entry_sequence == (last.entry_sequence and last.entry_sequence + len(last))
                and same_millisecond(micros, accepted[-1])
            ):
                runs[-1].append(group)
            else:
                runs.append([group])
                accepted.append(micros)
            last = group
        return OutFrame(self.sequence, runs, accepted, messages, size, self.closed_flows, self.ack_requested)
