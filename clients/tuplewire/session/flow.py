"""A sender's messages: in flows while they wait or the receiver works on them, in frames while on the way."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from tuplewire.session.ledger import Settled
from tuplewire.session.pieces import cut, starting_within, wire_bytes
from tuplewire.values.group import MAX_FRAME_GROUPS, TaskGroup, same_time


@dataclass(slots=True, eq=False)
class Entry:
    """Held messages of one flow: a batch's, or a piece of them."""

    group: TaskGroup
    token: Any
    age: int
    """Grows from batch to batch, from 1; 0 once the entry was written, and may have arrived."""
    retain: bool
    accepted_micros: int
    """See TaskGroup; a group without a time was accepted here."""

    @property
    def messages(self) -> int:
        """How many messages it has."""
        return len(self.group)

    def having(self, group: TaskGroup) -> Entry:
        """Return this entry with other messages."""
        return Entry(group, self.token, self.age, self.retain, self.accepted_micros)

    def redelivered(self) -> Entry:
        """Return this entry, marked as perhaps delivered before."""
        return self.having(self.group.as_redelivered())


@dataclass(slots=True, eq=False)
class Flow:
    """Messages with credit and an order of their own: to a task, or forwarded to it (TaskGroup.flow)."""

    route: int
    """See route_of()."""
    since: int
    """What the receiver says is about this flow once it has accepted this frame; before, about one that was
    closed."""
    used: bool = True
    """Whether it was used since the window last closed what is not."""
    pending: deque[Entry] = field(default_factory=deque)
    unprocessed: deque[Entry | Settled] = field(default_factory=deque)
    """Messages that the receiver has and has not released, in order: kept, or settled already."""
    highest: int = 0
    """The highest entry_sequence handed over since the flow was last all released."""
    held: int = 0
    written: int = 0
    """How many of the held messages were written, and may have arrived."""
    written_bytes: int = 0
    processed: int = 0
    released: int = 0
    sent_messages: int = 0
    sent_bytes: int = 0
    limit_messages: int = 0
    limit_bytes: int = 0

    @property
    def all_released(self) -> bool:
        """Whether the receiver has released everything that was handed over."""
        return not self.held and self.released >= self.sent_messages

    @property
    def unreleased(self) -> int:
        """How many messages were sent, and are neither released nor kept here until they are processed."""
        count, before = max(0, self.sent_messages - self.released), self.processed
        for each in self.unprocessed:
            if isinstance(each, Entry):
                count -= min(each.messages, max(0, before + each.messages - self.released))
            before += each.messages
        return count

    @property
    def has_credit(self) -> bool:
        """Whether another message may start."""
        return self.sent_messages < self.limit_messages and self.sent_bytes < self.limit_bytes

    @property
    def first_unwritten(self) -> int:
        """The index in `pending` of the first entry that was never written."""
        pending = self.pending
        return 0 if pending and pending[0].age else bisect_left(pending, 1, key=attrgetter("age"))

    @property
    def oldest(self) -> int:
        """The age of the oldest entry that was never written; 0 if there is none."""
        first = self.first_unwritten
        return self.pending[first].age if first < len(self.pending) else 0

    def take(self, entries: list[Entry], room: int) -> int:
        """Move messages with credit into a frame; return its room in bytes, 0 if it is full."""
        pending = self.pending
        while pending:
            entry = pending[0]
            group = entry.group
            count, size = len(group), group.size_bytes
            if entries and (wire_bytes(group) > room or len(entries) >= MAX_FRAME_GROUPS):
                return 0
            allowed = self.limit_messages - self.sent_messages
            allowed_bytes = self.limit_bytes - self.sent_bytes
            if allowed <= 0 or allowed_bytes <= 0:
                return room
            if count > allowed or size > allowed_bytes:
                allowed = min(allowed, starting_within(group, allowed_bytes))
                if allowed < count:
                    pieces = [entry.having(piece) for piece in cut(group, allowed)]
                    pending.popleft()
                    pending.extendleft(reversed(pieces))
                    entry = pieces[0]
                    count, size = allowed, entry.group.size_bytes
            pending.popleft()
            entries.append(entry)
            self.sent_messages += count
            self.sent_bytes += size
            if entry.age:
                entry.age = 0
                self.written += count
                self.written_bytes += size
            room -= wire_bytes(entry.group)
        return room

    def unsettled(self) -> tuple[list[Entry], list[Settled]]:
        """Take out the messages that the receiver will never release: the kept ones, and the settled."""
        unprocessed, self.unprocessed = self.unprocessed, deque()
        return (
            [each for each in unprocessed if isinstance(each, Entry)],
            [each for each in unprocessed if isinstance(each, Settled)],
        )


@dataclass(frozen=True, slots=True)
class OutFrame:
    """A frame to write: runs of groups, each run one (task, source) on the wire."""

    sequence: int
    runs: Sequence[Sequence[TaskGroup]]
    accepted_micros: Sequence[int]
    """When the first message of each run was accepted."""
    messages: int
    size_bytes: int
    closed: Sequence[int] = ()
    """The flows that the receiver may forget before it takes the messages in."""
    asks: bool = False
    """Whether the receiver is to acknowledge it at once."""

    def groups(self) -> list[TaskGroup]:
        """Return the messages, each group with its time: for transports that pass groups as they are."""
        timed = zip(self.runs, self.accepted_micros, strict=True)
        return [group.accepted(micros) for run, micros in timed for group in run]


@dataclass(slots=True, eq=False)
class InFlight:
    """A frame that is not acknowledged."""

    sequence: int
    entries: list[Entry]
    closed: Sequence[int] = ()
    asks: bool = False

    def out(self) -> OutFrame:
        """Return the frame to write; groups that follow each other within (task, source) are one run."""
        runs: list[list[TaskGroup]] = []
        accepted: list[int] = []
        messages = size = 0
        last: TaskGroup | None = None
        first_micros = self.entries[0].accepted_micros if self.entries else 0
        for entry in self.entries:
            group = entry.group
            messages += len(group)
            size += group.size_bytes
            micros = entry.accepted_micros
            if same_time(micros, first_micros):
                micros = first_micros
            if (
                last is not None
                and group.joins(last)
                and group.entry_sequence == (last.entry_sequence and last.entry_sequence + len(last))
                and same_time(micros, accepted[-1])
            ):
                runs[-1].append(group)
            else:
                runs.append([group])
                accepted.append(micros)
            last = group
        return OutFrame(self.sequence, runs, accepted, messages, size, self.closed, self.asks)
