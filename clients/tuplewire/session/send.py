"""The sending end of a session: what is accepted, what is on the way, what is settled.

Everything that was accepted stays here until it is acknowledged or given up, so that a new stream can go on
where the old one broke off: frames that the receiver has not accepted are sent again under the same numbers;
a receiver that has lost its memory gets everything again, under new numbers and marked as redelivered.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tuplewire.config import AckMode, Overflow, SessionSettings
from tuplewire.errors import ProtocolError
from tuplewire.group import TaskGroup, check_sizes, first_worker, task_and_via
from tuplewire.session.credit import Grant
from tuplewire.session.frame import InFlight, OutFrame
from tuplewire.session.lane import Entry, Lane
from tuplewire.session.ledger import DropReason, Ledger, LedgerSnapshot, Settled
from tuplewire.session.overflow import OldestTask, excess
from tuplewire.session.pieces import by_size, cut_off, frame_pieces
from tuplewire.session.receive import AckUpdate, Refusal

MAX_FRAMES_IN_FLIGHT = 8
"""Frames that may be on the way at once. A stream takes any number of frames without complaint and lets them
queue up inside; held back here instead, what they would carry goes into few large ones."""


@dataclass(frozen=True, slots=True)
class Opened:
    """What the receiver's welcome says."""

    receiver_incarnation: int
    initial: Grant
    """Holds for every task without a grant of its own."""
    update: AckUpdate
    max_message_bytes: int
    """The largest payload that it takes."""
    max_request_bytes: int
    """The largest request that it takes."""


class SendWindow:
    """State of one session at its sender; outlives the streams that carry it.

    Bounded by the settings in messages and bytes, in total and per task; a batch larger than a bound is taken
    when nothing else is held against that bound. With the policy `drop_oldest` room is made by giving up
    messages that have never been written; what may have arrived stays.
    """

    def __init__(self, settings: SessionSettings) -> None:
        self._settings = settings
        self._retain = settings.ack_mode is AckMode.PROCESSED
        self._lanes: dict[int, Lane] = {}
        self._lanes_to: dict[int, list[Lane]] = {}
        self._ready: dict[int, None] = {}
        self._in_flight: deque[InFlight] = deque()
        self._resend: deque[InFlight] = deque()
        self._next_sequence = 1
        self._initial = Grant(0, 0, 0, 0)
        self._exceptions: dict[int, Grant] = {}
        self._ledger = Ledger()
        self._released: list[Settled] = []
        self._drops_oldest = settings.overflow is Overflow.DROP_OLDEST
        self._oldest = OldestTask()
        self._overflowed: list[Settled] = []
        self._written = self._written_bytes = 0
        self.starved: dict[int, None] = {}
        """The lanes that have something to send and no credit for it, as of the last next_frame()."""
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
        self._max_frame_bytes = settings.max_frame_bytes

    # --- intake -----------------------------------------------------------------------------

    def check(self, groups: Iterable[TaskGroup]) -> None:
        """Raise MessageTooLargeError when one payload is over the limit."""
        check_sizes(groups, self.max_message_bytes)

    def offer(
        self, groups: Sequence[TaskGroup], token: Any = None, *, retain: bool = False, now_micros: int = 0
    ) -> bool:
        """Accept all of these messages, or (no room) none of them. The token comes back when they settle.

        retain: keep them until they are processed, as the mode `processed` does with every message.
        now_micros: when that is, for those that do not say when they were accepted (see TaskGroup).
        With the policy `drop_oldest` room is made where that is possible; overflowed() has what went for it.
        """
        messages = sum(map(len, groups))
        size = sum(len(group.data) for group in groups)
        if not self._has_room(groups, messages, size):
            return False
        age = self._ledger.accepted + 1
        for group in groups:
            lane = self._lanes.get(group.lane)
            if lane is None:
                lane = self._lanes[group.lane] = self._new_lane(group.lane)
            accepted = group.accepted_micros or now_micros
            for piece in frame_pieces(group, self._max_frame_bytes):
                lane.pending.append(Entry(piece, token, age, retain or self._retain, accepted))
            if lane.quiet:
                lane.highest = 0
            lane.held += len(group)
            lane.highest = max(lane.highest, group.end - 1)
            self._ready[group.lane] = None
            if self._drops_oldest:
                self._oldest.add(group.lane, age)
        self.messages += messages
        self.size_bytes += size
        self._ledger.accepted += messages
        return True

    def _has_room(self, groups: Iterable[TaskGroup], messages: int, size: int) -> bool:
        """Whether there is room for so much, or was made."""
        settings = self._settings
        most = self.messages - excess(self.messages, messages, settings.max_pending_messages)
        most_bytes = self.size_bytes - excess(self.size_bytes, size, settings.max_pending_bytes)
        crowded = self._crowded(groups)
        if not crowded and most == self.messages and most_bytes == self.size_bytes:
            return True
        return self._drops_oldest and self._make_room(crowded, most, most_bytes)

    def _crowded(self, groups: Iterable[TaskGroup]) -> dict[int, int]:
        """Return each task whose bound would be passed, with how many of its messages may stay."""
        limit = self._settings.max_pending_task_messages
        offered: dict[int, int] = {}
        crowded: dict[int, int] = {}
        for group in groups:
            lane = self._lanes.get(group.lane)
            if lane is not None and lane.held:
                count = offered[group.lane] = offered.get(group.lane, 0) + len(group)
                if too_many := excess(lane.held, count, limit):
                    crowded[group.lane] = lane.held - too_many
        return crowded

    def _make_room(self, crowded: dict[int, int], most: int, most_bytes: int) -> bool:
        """Give up the oldest messages that have never been written, no more than needed.

        crowded: how many messages of a task may stay. most, most_bytes: how many of all.
        Returns False, and gives up nothing, when these are too few.
        """
        lanes = self._lanes
        if self._written > most or self._written_bytes > most_bytes:
            return False
        if any(lanes[number].written > stay for number, stay in crowded.items()):
            return False
        for number, stay in crowded.items():
            while (too_many := lanes[number].held - stay) > 0:
                self._give_up(number, too_many, 0)
        while self.messages > most or self.size_bytes > most_bytes:
            number = self._oldest.find(lambda each: lanes[each].oldest)
            self._give_up(number, self.messages - most, self.size_bytes - most_bytes)
        return True

    def _give_up(self, number: int, messages: int, size_bytes: int) -> None:
        """Drop a task's oldest entry that has never been written; of a larger one only what must go."""
        lane = self._lanes[number]
        first = lane.first_unwritten
        lane.pending.rotate(-first)
        entry = lane.pending.popleft()
        gone, *rest = cut_off(entry.group, messages, size_bytes)
        lane.pending.extendleft(entry.having(piece) for piece in reversed(rest))
        lane.pending.rotate(first)
        if not lane.pending:
            self.starved.pop(number, None)
        self._settle(entry.having(gone), DropReason.OVERFLOW, self._overflowed)

    def overflowed(self) -> list[Settled]:
        """Return what was given up for room since the last call."""
        overflowed, self._overflowed = self._overflowed, []
        return overflowed

    def _new_lane(self, number: int) -> Lane:
        task, via = task_and_via(number)
        lane = Lane(first_worker(via))
        self._limit(number, lane)
        self._lanes_to.setdefault(task, []).append(lane)
        return lane

    def _limit(self, number: int, lane: Lane) -> None:
        """Set the credit that a lane starts with; what is passed on has that of a worker before."""
        if number < 0:
            lane.limit_messages = lane.limit_bytes = sys.maxsize
        else:
            grant = self._exceptions.get(number, self._initial)
            lane.limit_messages, lane.limit_bytes = grant.messages, grant.size_bytes

    # --- streams ----------------------------------------------------------------------------

    def opened(self, opened: Opened) -> list[Settled]:
        """Go on over a new stream, as the receiver's welcome says; return what is settled by it.

        Raises ProtocolError when the receiver knows frames that are not ours.
        """
        known = (
            opened.receiver_incarnation == self.receiver_incarnation != 0
            and opened.update.sequence >= self.acknowledged
        )
        if not known and opened.update.sequence:
            # It would take our first frames for repeated ones and drop them.
            raise ProtocolError(
                f"the receiver resumes at frame {opened.update.sequence} a session that this sender does not "
                "have: give every process a sender id or an incarnation of its own"
            )
        if known:
            self._check_sent(opened.update)
        self._initial = opened.initial
        self.receiver_incarnation = opened.receiver_incarnation
        if known:
            settled = self.update(opened.update)
            self._resend = deque(self._in_flight)
        else:
            settled = []
            self._exceptions = {grant.lane: grant for grant in opened.update.grants}
            self._start_over()
        settled += self._fit(opened)
        self._ready = {number: None for number, lane in self._lanes.items() if lane.pending}
        self.starved.clear()
        return settled

    def _fit(self, opened: Opened) -> list[Settled]:
        """Keep to the receiver's limits: give up what it would never take, cut what is too large for it."""
        settings = self._settings
        self.max_message_bytes = min(settings.max_message_bytes, opened.max_message_bytes)
        # A frame may be over its size by one message, and gRPC counts the columns too.
        room = max(1, (opened.max_request_bytes - self.max_message_bytes) // 2)
        frame_bytes = min(settings.max_frame_bytes, room)
        if frame_bytes == self._max_frame_bytes and self.max_message_bytes == settings.max_message_bytes:
            return []
        self._max_frame_bytes = frame_bytes
        settled: list[Settled] = []
        for lane in self._lanes.values():
            waiting, lane.pending = lane.pending, deque()
            for entry in waiting:
                for piece in frame_pieces(entry.group, frame_bytes):
                    for kept, part in by_size(piece, self.max_message_bytes):
                        if kept:
                            lane.pending.append(entry.having(part))
                        else:
                            self._settle(entry.having(part), DropReason.TOO_LARGE, settled)
        return settled

    def _start_over(self) -> None:
        """Put everything back to the head of its task's queue: the receiver knows nothing of it."""
        for frame in reversed(self._in_flight):
            for entry in reversed(frame.entries):
                self._lanes[entry.group.lane].pending.appendleft(entry.redelivered())
        for number, lane in self._lanes.items():
            kept, released = lane.unsettled()
            self._released += released
            for entry in reversed(kept):
                lane.pending.appendleft(entry.redelivered())
            lane.sent_messages = lane.sent_bytes = lane.processed = lane.released = 0
            self._limit(number, lane)
        self._in_flight.clear()
        self._resend.clear()
        self._next_sequence = 1
        self.acknowledged = 0

    def next_frame(self) -> OutFrame | None:
        """Return what to write next: everything that has credit, up to the frame's size; None if nothing."""
        if self._resend:
            frame = self._resend.popleft()
            return frame.out()
        if len(self._in_flight) >= MAX_FRAMES_IN_FLIGHT:
            return None
        entries: list[Entry] = []
        room = self._max_frame_bytes
        while self._ready and room > 0:
            number = next(iter(self._ready))
            del self._ready[number]
            lane = self._lanes[number]
            written, written_bytes = lane.written, lane.written_bytes
            room = lane.take(entries, room)
            self._written += lane.written - written
            self._written_bytes += lane.written_bytes - written_bytes
            if not lane.pending:
                self.starved.pop(number, None)
            elif lane.has_credit:
                self._ready[number] = None
            else:
                self.starved[number] = None
        if not entries:
            return None
        frame = InFlight(self._next_sequence, entries)
        self._next_sequence += 1
        self._in_flight.append(frame)
        return frame.out()

    # --- what the receiver says ---------------------------------------------------------------

    def update(self, update: AckUpdate) -> list[Settled]:
        """Take an acknowledgement with grants and refusals in; return what is settled by it.

        Saying it again changes nothing. Raises ProtocolError when it acknowledges what was never sent. One
        that missed() says to follow a lost one must not be taken in.
        """
        self._check_sent(update)
        settled: list[Settled] = []
        for refusal in update.refusals:
            self._refuse(refusal, settled)
        while self._in_flight and self._in_flight[0].sequence <= update.sequence:
            for entry in self._in_flight.popleft().entries:
                lane = self._lanes[entry.group.lane]
                if entry.retain:
                    lane.unprocessed.append(entry)
                    continue
                self._settle(entry, None, settled)
                if entry.token is not None:
                    lane.unprocessed.append(settled[-1])
        self.acknowledged = max(self.acknowledged, update.sequence)
        while self._resend and self._resend[0].sequence <= update.sequence:
            self._resend.popleft()
        for grant in update.grants:
            self._grant(grant, settled)
        return settled

    def missed(self, update: AckUpdate) -> bool:
        """Whether an acknowledgement before this one was lost, and perhaps refusals with it."""
        return update.after > self.acknowledged

    @property
    def full(self) -> bool:
        """Whether as many frames are on the way as may be, and something waits behind them."""
        return len(self._in_flight) >= MAX_FRAMES_IN_FLIGHT and bool(self._ready)

    def waiting_tasks(self) -> set[int]:
        """Return the tasks that have something which was not written yet."""
        return {task_and_via(number)[0] for number in (*self._ready, *self.starved)}

    @property
    def waiting(self) -> bool:
        """Whether there is something that the receiver still has to say: whoever waits in vain must probe."""
        return bool(self.messages) or any(lane.unprocessed for lane in self._lanes.values())

    def _check_sent(self, update: AckUpdate) -> None:
        if update.sequence >= self._next_sequence:
            raise ProtocolError(
                f"frame {update.sequence} was acknowledged, and {self._next_sequence - 1} were sent"
            )

    def _grant(self, grant: Grant, settled: list[Settled]) -> None:
        lane = self._lanes.get(grant.lane)
        if lane is None:
            if grant.lane in self._exceptions:
                self._exceptions[grant.lane] = grant
            return
        lane.limit_messages = max(lane.limit_messages, grant.messages)
        lane.limit_bytes = max(lane.limit_bytes, grant.size_bytes)
        lane.released = max(lane.released, grant.processed)
        if lane.pending:
            self._ready[grant.lane] = None
            if lane.has_credit:
                self.starved.pop(grant.lane, None)
        while lane.unprocessed and lane.processed + lane.unprocessed[0].messages <= grant.processed:
            done = lane.unprocessed.popleft()
            lane.processed += done.messages
            if isinstance(done, Entry):
                self._settle(done, None, settled)
            else:
                self._released.append(done)

    def _refuse(self, refusal: Refusal, settled: list[Settled]) -> None:
        reason = DropReason.UNKNOWN_TASK if refusal.code == "UNKNOWN_TASK" else DropReason.REFUSED
        # The frames' numbers follow by one.
        position = refusal.sequence - self._in_flight[0].sequence if self._in_flight else -1
        if not 0 <= position < len(self._in_flight):
            return
        frame = self._in_flight[position]
        kept = []
        for entry in frame.entries:
            if entry.group.lane == refusal.task:
                self._settle(entry, reason, settled)
                # The receiver counts what it refuses as processed.
                self._lanes[refusal.task].processed += len(entry.group)
            else:
                kept.append(entry)
        frame.entries = kept

    def _settle(self, entry: Entry, dropped: DropReason | None, settled: list[Settled]) -> None:
        settled.append(self._account(entry, dropped))
        if entry.token is not None and (dropped is not None or entry.retain):
            self._released.append(settled[-1])

    def _account(self, entry: Entry, dropped: DropReason | None) -> Settled:
        group = entry.group
        count, size = len(group), len(group.data)
        self._let_go(entry, count, size)
        if dropped is None:
            self._ledger.acknowledged += count
        else:
            self._ledger.dropped[dropped] += count
        return Settled(entry.token, group.task, count, size, dropped)

    def _let_go(self, entry: Entry, messages: int, size_bytes: int) -> None:
        """Hold an entry of so many messages no longer."""
        lane = self._lanes[entry.group.lane]
        self.messages -= messages
        self.size_bytes -= size_bytes
        lane.held -= messages
        if not entry.age:
            lane.written -= messages
            lane.written_bytes -= size_bytes
            self._written -= messages
            self._written_bytes -= size_bytes

    def released(self) -> list[Settled]:
        """Return what the receiver is done with since the last call, of what came with a token.

        That is after it was settled; at once where it was refused, or when the receiver has gone.
        """
        released, self._released = self._released, []
        return released

    def quiet(self, task: int) -> bool:
        """Whether nothing of a task is held here, and the receiver is done with all that it was sent."""
        return all(lane.quiet for lane in self._lanes_to.get(task, ()))

    def follows(self, task: int, workers: Collection[int], position: int) -> bool:
        """Whether the receiver is not done yet with what comes before a position.

        workers: the number of the worker that had the messages from a program; 0: the one that sends them.
        """
        return any(
            lane.highest < position and not lane.quiet and lane.worker in workers
            for lane in self._lanes_to.get(task, ())
        )

    # --- the end --------------------------------------------------------------------------------

    def abandon(self, reason: DropReason) -> list[Settled]:
        """Give up everything that is held, and return it.

        In the mode `queued`, what the receiver has accepted was kept only in case that it dies: it counts as
        acknowledged, and as released by nobody.
        """
        settled: list[Settled] = []
        if not self._retain:
            for lane in self._lanes.values():
                accepted, released = lane.unsettled()
                self._released += released
                settled += [self._account(entry, None) for entry in accepted]
        for entry in self._remove_all():
            self._settle(entry, reason, settled)
        return settled

    def take_back(self) -> list[tuple[TaskGroup, Any]]:
        """Take out everything that is held as if it had never been accepted; in order within each task.

        What was on the way may have arrived all the same, and is marked as redelivered.
        """
        left: list[tuple[TaskGroup, Any]] = []
        for entry in self._remove_all():
            group = entry.group
            self._let_go(entry, len(group), len(group.data))
            self._ledger.accepted -= len(group)
            left.append((group if entry.age else group.as_redelivered(), entry.token))
        return left

    def _remove_all(self) -> list[Entry]:
        entries: list[Entry] = []
        for lane in self._lanes.values():
            kept, released = lane.unsettled()
            entries += kept
            self._released += released
        entries += [entry for frame in self._in_flight for entry in frame.entries]
        entries += [entry for lane in self._lanes.values() for entry in lane.pending]
        for lane in self._lanes.values():
            lane.pending.clear()
        self._in_flight.clear()
        self._resend.clear()
        self._ready.clear()
        self.starved.clear()
        return entries

    def ledger(self) -> LedgerSnapshot:
        """Return the balance; what is pending is counted entry by entry."""
        pending = sum(len(entry.group) for frame in self._in_flight for entry in frame.entries)
        for lane in self._lanes.values():
            pending += sum(len(entry.group) for entry in lane.pending)
            pending += sum(len(each.group) for each in lane.unprocessed if isinstance(each, Entry))
        return self._ledger.snapshot(pending)
