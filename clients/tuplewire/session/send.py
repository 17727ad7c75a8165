"""The sending end of a session: what is accepted, what is on the way, what is settled.

Everything that was accepted stays here until it is acknowledged or given up, so that a new stream can go on
where the old one broke off: frames that the receiver has not accepted are sent again under the same numbers;
a receiver that has lost its memory gets everything again, under new numbers and marked as redelivered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from tuplewire.config import AckMode, SessionSettings
from tuplewire.errors import MessageTooLargeError
from tuplewire.message import TaskGroup
from tuplewire.session.credit import Grant
from tuplewire.session.ledger import DropReason, Ledger, LedgerSnapshot
from tuplewire.session.receive import AckUpdate, Refusal


@dataclass(frozen=True, slots=True)
class Settled:
    """Messages that are done with: acknowledged, or dropped for a reason; and the token they came with."""

    token: Any
    task: int
    messages: int
    size_bytes: int
    dropped: DropReason | None


@dataclass(frozen=True, slots=True)
class OutFrame:
    """A frame to write: runs of groups, each run one (task, source) on the wire."""

    sequence: int
    runs: Sequence[Sequence[TaskGroup]]
    messages: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Opened:
    """What the receiver's welcome says."""

    receiver_incarnation: int
    initial: Grant
    """Holds for every task without a grant of its own."""
    update: AckUpdate


class _Entry:
    __slots__ = ("group", "token")

    def __init__(self, group: TaskGroup, token: Any) -> None:
        self.group = group
        self.token = token


class _Task:
    __slots__ = (
        "held",
        "limit_bytes",
        "limit_messages",
        "pending",
        "processed",
        "sent_bytes",
        "sent_messages",
        "unprocessed",
    )

    def __init__(self) -> None:
        self.pending: deque[_Entry] = deque()
        self.unprocessed: deque[_Entry] = deque()
        self.held = 0
        self.processed = 0
        self.sent_messages = self.sent_bytes = 0
        self.limit_messages = self.limit_bytes = 0

    @property
    def has_credit(self) -> bool:
        return self.sent_messages < self.limit_messages and self.sent_bytes < self.limit_bytes


class _InFlight:
    __slots__ = ("entries", "sequence")

    def __init__(self, sequence: int, entries: list[_Entry]) -> None:
        self.sequence = sequence
        self.entries = entries


class SendWindow:
    """State of one session at its sender; outlives the streams that carry it.

    Bounded by the settings in messages and bytes, in total and per task; a batch larger than a bound is taken
    when nothing else is held against that bound.
    """

    def __init__(self, settings: SessionSettings) -> None:
        self._settings = settings
        self._processed_mode = settings.ack_mode is AckMode.PROCESSED
        self._tasks: dict[int, _Task] = {}
        self._ready: dict[int, None] = {}
        self._in_flight: deque[_InFlight] = deque()
        self._resend: deque[_InFlight] = deque()
        self._next_sequence = 1
        self._initial = Grant(0, 0, 0, 0)
        self._ledger = Ledger()
        self.messages = 0
        """Messages that are held: waiting, on the way, or not processed."""
        self.size_bytes = 0
        """The same in payload bytes."""
        self.acknowledged = 0
        """The last frame that is known to be accepted."""
        self.receiver_incarnation = 0
        """The incarnation of the receiver that this numbering belongs to; 0 before the first welcome."""
        self.max_message_bytes = settings.max_message_bytes
        """The largest payload: our setting, or the receiver's where that is smaller."""

    # --- intake -----------------------------------------------------------------------------

    def check(self, groups: Iterable[TaskGroup]) -> None:
        """Raise MessageTooLargeError when one payload is over the limit."""
        limit = self.max_message_bytes
        for group in groups:
            if len(group.data) > limit and (largest := max(group.sizes())) > limit:
                raise MessageTooLargeError(group.task, largest, limit)

    def offer(self, groups: Sequence[TaskGroup], token: Any = None) -> bool:
        """Accept all of these messages, or (no room) none of them. The token comes back when they settle."""
        messages = sum(map(len, groups))
        size = sum(len(group.data) for group in groups)
        settings = self._settings
        if self.messages and (
            self.messages + messages > settings.max_pending_messages
            or self.size_bytes + size > settings.max_pending_bytes
        ):
            return False
        if not all(self._task_has_room(group) for group in groups):
            return False
        for group in groups:
            task = self._tasks.get(group.task)
            if task is None:
                task = self._tasks[group.task] = self._new_task()
            if len(group.data) > settings.max_frame_bytes:
                task.pending.extend(_Entry(piece, token) for piece in group.split(settings.max_frame_bytes))
            else:
                task.pending.append(_Entry(group, token))
            task.held += len(group)
            self._ready[group.task] = None
        self.messages += messages
        self.size_bytes += size
        self._ledger.accepted += messages
        return True

    def _task_has_room(self, group: TaskGroup) -> bool:
        task = self._tasks.get(group.task)
        if task is None or not task.held:
            return True
        return task.held + len(group) <= self._settings.max_pending_task_messages

    def _new_task(self) -> _Task:
        task = _Task()
        task.limit_messages, task.limit_bytes = self._initial.messages, self._initial.size_bytes
        return task

    # --- streams ----------------------------------------------------------------------------

    def opened(self, opened: Opened) -> list[Settled]:
        """Go on over a new stream, as the receiver's welcome says; return what is settled by it."""
        self._initial = opened.initial
        known = (
            opened.receiver_incarnation == self.receiver_incarnation != 0
            and opened.update.sequence >= self.acknowledged
        )
        self.receiver_incarnation = opened.receiver_incarnation
        if known:
            settled = self.update(opened.update)
            self._resend = deque(self._in_flight)
        else:
            settled = []
            self._start_over()
            for grant in opened.update.grants:
                self._grant(grant, settled)
        self._ready = {task: None for task, state in self._tasks.items() if state.pending}
        return settled

    def _start_over(self) -> None:
        """Put everything back to the head of its task's queue: the receiver knows nothing of it."""
        for frame in reversed(self._in_flight):
            for entry in reversed(frame.entries):
                self._tasks[entry.group.task].pending.appendleft(_redelivered(entry))
        for task in self._tasks.values():
            while task.unprocessed:
                task.pending.appendleft(_redelivered(task.unprocessed.pop()))
            task.sent_messages = task.sent_bytes = task.processed = 0
            task.limit_messages, task.limit_bytes = self._initial.messages, self._initial.size_bytes
        self._in_flight.clear()
        self._resend.clear()
        self._next_sequence = 1
        self.acknowledged = 0

    def next_frame(self) -> OutFrame | None:
        """Return what to write next: everything that has credit, up to the frame's size; None if nothing."""
        if self._resend:
            frame = self._resend.popleft()
            return _out(frame)
        entries: list[_Entry] = []
        room = self._settings.max_frame_bytes
        while self._ready and room > 0:
            number = next(iter(self._ready))
            del self._ready[number]
            task = self._tasks[number]
            room = self._take(task, entries, room)
            if task.pending and (
                task.sent_messages < task.limit_messages and task.sent_bytes < task.limit_bytes
            ):
                self._ready[number] = None
        if not entries:
            return None
        frame = _InFlight(self._next_sequence, entries)
        self._next_sequence += 1
        self._in_flight.append(frame)
        return _out(frame)

    def _take(self, task: _Task, entries: list[_Entry], room: int) -> int:
        """Move what has credit from a task to a frame; return the room that is left, 0 when it is full."""
        pending = task.pending
        while pending:
            entry = pending[0]
            group = entry.group
            count, size = len(group), len(group.data)
            if entries and size > room:
                return 0
            allowed = task.limit_messages - task.sent_messages
            allowed_bytes = task.limit_bytes - task.sent_bytes
            if allowed <= 0 or allowed_bytes <= 0:
                return room
            if count > allowed or size > allowed_bytes:
                if size > allowed_bytes:
                    starts = list(accumulate(group.sizes(), initial=0))[:-1]
                    allowed = min(allowed, sum(start < allowed_bytes for start in starts))
                if allowed < count:
                    pending[0] = _Entry(group.slice(allowed, count), entry.token)
                    entry = _Entry(group.slice(0, allowed), entry.token)
                    count, size = allowed, len(entry.group.data)
                else:
                    pending.popleft()
            else:
                pending.popleft()
            entries.append(entry)
            task.sent_messages += count
            task.sent_bytes += size
            room -= size
        return room

    # --- what the receiver says ---------------------------------------------------------------

    def update(self, update: AckUpdate) -> list[Settled]:
        """Take an acknowledgement with grants and refusals in; return what is settled by it.

        Saying it again changes nothing.
        """
        settled: list[Settled] = []
        for refusal in update.refusals:
            self._refuse(refusal, settled)
        while self._in_flight and self._in_flight[0].sequence <= update.sequence:
            for entry in self._in_flight.popleft().entries:
                if self._processed_mode:
                    self._tasks[entry.group.task].unprocessed.append(entry)
                else:
                    self._settle(entry, None, settled)
        self.acknowledged = max(self.acknowledged, update.sequence)
        while self._resend and self._resend[0].sequence <= update.sequence:
            self._resend.popleft()
        for grant in update.grants:
            self._grant(grant, settled)
        return settled

    def _grant(self, grant: Grant, settled: list[Settled]) -> None:
        task = self._tasks.get(grant.task)
        if task is None:
            return
        task.limit_messages = max(task.limit_messages, grant.messages)
        task.limit_bytes = max(task.limit_bytes, grant.size_bytes)
        if task.pending:
            self._ready[grant.task] = None
        while task.unprocessed and task.processed + len(task.unprocessed[0].group) <= grant.processed:
            entry = task.unprocessed.popleft()
            task.processed += len(entry.group)
            self._settle(entry, None, settled)

    def _refuse(self, refusal: Refusal, settled: list[Settled]) -> None:
        reason = DropReason.UNKNOWN_TASK if refusal.code == "UNKNOWN_TASK" else DropReason.REFUSED
        for frame in self._in_flight:
            if frame.sequence != refusal.sequence:
                continue
            kept = []
            for entry in frame.entries:
                if entry.group.task == refusal.task:
                    self._settle(entry, reason, settled)
                    # The receiver counts what it refuses as processed.
                    self._tasks[refusal.task].processed += len(entry.group)
                else:
                    kept.append(entry)
            frame.entries = kept

    def _settle(self, entry: _Entry, dropped: DropReason | None, settled: list[Settled]) -> None:
        group = entry.group
        count, size = len(group), len(group.data)
        self.messages -= count
        self.size_bytes -= size
        self._tasks[group.task].held -= count
        if dropped is None:
            self._ledger.acknowledged += count
        else:
            self._ledger.dropped[dropped] += count
        settled.append(Settled(entry.token, group.task, count, size, dropped))

    def abandon(self, reason: DropReason) -> list[Settled]:
        """Give up everything that is held, and return it."""
        settled: list[Settled] = []
        for frame in self._in_flight:
            for entry in frame.entries:
                self._settle(entry, reason, settled)
        for task in self._tasks.values():
            for entry in (*task.unprocessed, *task.pending):
                self._settle(entry, reason, settled)
            task.unprocessed.clear()
            task.pending.clear()
        self._in_flight.clear()
        self._resend.clear()
        self._ready.clear()
        return settled

    def ledger(self) -> LedgerSnapshot:
        """Return the balance; what is pending is counted entry by entry."""
        pending = sum(len(entry.group) for frame in self._in_flight for entry in frame.entries)
        for task in self._tasks.values():
            pending += sum(len(entry.group) for entry in task.pending)
            pending += sum(len(entry.group) for entry in task.unprocessed)
        return self._ledger.snapshot(pending)


def _redelivered(entry: _Entry) -> _Entry:
    return _Entry(entry.group.as_redelivered(), entry.token)


def _out(frame: _InFlight) -> OutFrame:
    runs: list[list[TaskGroup]] = []
    messages = size = 0
    last: TaskGroup | None = None
    for entry in frame.entries:
        group = entry.group
        messages += len(group)
        size += len(group.data)
        if (
            last is not None
            and last.task == group.task
            and last.source == group.source
            and last.redelivered == group.redelivered
        ):
            runs[-1].append(group)
        else:
            runs.append([group])
        last = group
    return OutFrame(frame.sequence, runs, messages, size)
