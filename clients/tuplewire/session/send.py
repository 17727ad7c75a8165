"""The sending end of a session: what is accepted, what is on the way, what is settled.

Every accepted message stays here until it is acknowledged or given up, so a new stream can continue where the
old one broke off. Frames that the receiver has not accepted are sent again under the same numbers. A receiver
that has lost its memory gets everything again, under new numbers and marked as redelivered.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tuplewire.config import AckMode, Overflow, SessionSettings
from tuplewire.errors import ProtocolError
from tuplewire.group import TaskGroup, check_sizes, entry_worker, flow_of, task_and_forwarded
from tuplewire.session.credit import Grant
from tuplewire.session.flow import Entry, Flow
from tuplewire.session.frame import InFlight, OutFrame
from tuplewire.session.ledger import DropReason, Ledger, LedgerSnapshot, Settled
from tuplewire.session.overflow import OldestTask, excess
from tuplewire.session.pieces import by_size, cut_off, frame_pieces
from tuplewire.session.receive import AckUpdate, Refusal

MAX_FRAMES_IN_FLIGHT = 8
"""Frames that may be unacknowledged at once. A stream takes any number of frames without complaint and queues
them inside. Held back here, their messages go into few large frames instead."""


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


class SendWindow:
    """State of one session at its sender; outlives the streams that carry it.

    Bounded by the settings in messages and bytes, in total and per task. A batch larger than a bound is taken
    when nothing else counts against that bound. The policy `drop_oldest` makes room: it gives up messages
    that have never been written. Written ones stay, as they may have arrived.
    """

    def __init__(self, settings: SessionSettings) -> None:
        self._settings = settings
        self._retain = settings.ack_mode is AckMode.PROCESSED
        self._flows: dict[int, Flow] = {}
        self._flows_to: dict[int, list[Flow]] = {}
        self._ready: dict[int, None] = {}
        self._in_flight: deque[InFlight] = deque()
        self._resend: deque[InFlight] = deque()
        self._next_sequence = 1
        self._initial = Grant(0, 0, 0, 0)
        self._exceptions: dict[int, Grant] = {}
        self._closing: dict[int, None] = {}
        self._closed: dict[int, int] = {}
        self._ledger = Ledger()
        self._released: list[Settled] = []
        self._drops_oldest = settings.overflow is Overflow.DROP_OLDEST
        self._oldest = OldestTask()
        self._overflowed: list[Settled] = []
        self._written = self._written_bytes = 0
        self.without_credit: dict[int, None] = {}
        """The flows with messages to send and no credit for them, as of the last next_frame()."""
        self.messages = 0
        """Held messages: waiting, on the way, or not processed."""
        self.size_bytes = 0
        """The same in payload bytes."""
        self.acknowledged = 0
        """The last frame that the receiver is known to have accepted."""
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
        """Accept all of these messages and return True, or none of them for want of room and return False.

        token: comes back when the messages settle.
        retain: keep them until they are processed, as the mode `processed` does with every message.
        now_micros: the time of acceptance of groups without one (see TaskGroup), in microseconds since 1970.
        The policy `drop_oldest` makes room if it can; take_overflowed() returns what it gave up.
        """
        messages = sum(map(len, groups))
        size = sum(len(group.data) for group in groups)
        if not self._has_room(groups, messages, size):
            return False
        self.accept(groups, token, retain=retain, now_micros=now_micros)
        return True

    def accept(
        self, groups: Iterable[TaskGroup], token: Any = None, *, retain: bool = False, now_micros: int = 0
    ) -> None:
        """Accept messages for which fits() has said that there is room; see offer."""
        age = self._ledger.accepted + 1
        for group in groups:
            flow = self._flows.get(group.flow)
            if flow is None:
                flow = self._flows[group.flow] = self._new_flow(group.flow)
            accepted = group.accepted_micros or now_micros
            for piece in frame_pieces(group, self._max_frame_bytes):
                flow.pending.append(Entry(piece, token, age, retain or self._retain, accepted))
            if flow.all_released:
                flow.highest = 0
            flow.used = True
            messages = len(group)
            flow.held += messages
            flow.highest = max(flow.highest, group.end - 1)
            self._ready[group.flow] = None
            if self._drops_oldest:
                self._oldest.add(group.flow, age)
            self.messages += messages
            self.size_bytes += len(group.data)
            self._ledger.accepted += messages

    def fits(self, groups: Iterable[TaskGroup], more_messages: int, more_bytes: int) -> bool:
        """Whether there is room for messages beside so many others, which may be to the same tasks."""
        settings = self._settings
        messages = size = 0
        to_task: dict[int, int] = {}
        for group in groups:
            messages += len(group)
            size += len(group.data)
            offered = to_task[group.flow] = to_task.get(group.flow, 0) + len(group)
            held = self.held_of(group.flow) + more_messages
            if excess(held, offered, settings.max_pending_task_messages):
                return False
        return not (
            excess(self.messages + more_messages, messages, settings.max_pending_messages)
            or excess(self.size_bytes + more_bytes, size, settings.max_pending_bytes)
        )

    def held_of(self, number: int) -> int:
        """Return how many messages of a flow are held."""
        flow = self._flows.get(number)
        return flow.held if flow is not None else 0

    def _has_room(self, groups: Iterable[TaskGroup], messages: int, size: int) -> bool:
        """Return True if there is room for so many messages and bytes, or if it could be made."""
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
            flow = self._flows.get(group.flow)
            if flow is not None and flow.held:
                count = offered[group.flow] = offered.get(group.flow, 0) + len(group)
                if too_many := excess(flow.held, count, limit):
                    crowded[group.flow] = flow.held - too_many
        return crowded

    def _make_room(self, crowded: dict[int, int], most: int, most_bytes: int) -> bool:
        """Give up the oldest messages that have never been written, no more than needed.

        crowded: per flow, how many messages may stay. most, most_bytes: the total that may stay.
        Returns False, and gives up nothing, if the written messages alone exceed that.
        """
        flows = self._flows
        if self._written > most or self._written_bytes > most_bytes:
            return False
        if any(flows[number].written > stay for number, stay in crowded.items()):
            return False
        for number, stay in crowded.items():
            while (too_many := flows[number].held - stay) > 0:
                self._give_up(number, too_many, 0)
        while self.messages > most or self.size_bytes > most_bytes:
            number = self._oldest.find(lambda each: flows[each].oldest if each in flows else 0)
            self._give_up(number, self.messages - most, self.size_bytes - most_bytes)
        return True

    def _give_up(self, number: int, messages: int, size_bytes: int) -> None:
        """Drop a flow's oldest unwritten entry; cut a larger one, and drop no more than must go."""
        flow = self._flows[number]
        first = flow.first_unwritten
        flow.pending.rotate(-first)
        entry = flow.pending.popleft()
        gone, *rest = cut_off(entry.group, messages, size_bytes)
        flow.pending.extendleft(entry.having(piece) for piece in reversed(rest))
        flow.pending.rotate(first)
        if not flow.pending:
            self.without_credit.pop(number, None)
        self._settle(entry.having(gone), DropReason.OVERFLOW, self._overflowed)

    def take_overflowed(self) -> list[Settled]:
        """Take out the messages that were given up for room since the last call."""
        overflowed, self._overflowed = self._overflowed, []
        return overflowed

    def _new_flow(self, number: int) -> Flow:
        task, forwarded = task_and_forwarded(number)
        flow = Flow(entry_worker(forwarded), self._closed.pop(number, self.acknowledged))
        self._limit(number, flow)
        self._flows_to.setdefault(task, []).append(flow)
        return flow

    def _limit(self, number: int, flow: Flow) -> None:
        """Set a flow's first credit. Forwarded messages need none: they have it from their entry worker."""
        if number < 0:
            flow.limit_messages = flow.limit_bytes = sys.maxsize
        else:
            grant = self._exceptions.get(number, self._initial)
            flow.limit_messages, flow.limit_bytes = grant.messages, grant.size_bytes

    # --- streams ----------------------------------------------------------------------------

    def opened(self, opened: Opened) -> list[Settled]:
        """Continue over a new stream as the receiver's welcome says; return what that settles.

        Raises ProtocolError if the receiver knows frames that are not ours.
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
            self._exceptions = {grant.flow: grant for grant in opened.update.grants}
            self._start_over()
        settled += self._fit(opened)
        self._ready = {number: None for number, flow in self._flows.items() if flow.pending}
        self.without_credit.clear()
        return settled

    def _fit(self, opened: Opened) -> list[Settled]:
        """Keep to the receiver's limits: give up messages over its limit, cut groups into smaller frames."""
        settings = self._settings
        self.max_message_bytes = min(settings.max_message_bytes, opened.max_message_bytes)
        # A frame may be over its size by one message, and gRPC counts the columns too.
        room = max(1, (opened.max_request_bytes - self.max_message_bytes) // 2)
        frame_bytes = min(settings.max_frame_bytes, room)
        if frame_bytes == self._max_frame_bytes and self.max_message_bytes == settings.max_message_bytes:
            return []
        self._max_frame_bytes = frame_bytes
        settled: list[Settled] = []
        for flow in self._flows.values():
            waiting, flow.pending = flow.pending, deque()
            for entry in waiting:
                for piece in frame_pieces(entry.group, frame_bytes):
                    for kept, part in by_size(piece, self.max_message_bytes):
                        if kept:
                            flow.pending.append(entry.having(part))
                        else:
                            self._settle(entry.having(part), DropReason.TOO_LARGE, settled)
        return settled

    def _start_over(self) -> None:
        """Put everything back to the head of its flow: this receiver has no memory of the session."""
        for frame in reversed(self._in_flight):
            for entry in reversed(frame.entries):
                self._flows[entry.group.flow].pending.appendleft(entry.redelivered())
        for number, flow in self._flows.items():
            kept, released = flow.unsettled()
            self._released += released
            for entry in reversed(kept):
                flow.pending.appendleft(entry.redelivered())
            flow.sent_messages = flow.sent_bytes = flow.processed = flow.released = flow.since = 0
            self._limit(number, flow)
        self._in_flight.clear()
        self._resend.clear()
        self._closing.clear()
        self._closed.clear()
        self._next_sequence = 1
        self.acknowledged = 0

    def next_frame(self) -> OutFrame | None:
        """Return the next frame: all messages with credit, up to a frame's size. None if there are none."""
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
            flow = self._flows[number]
            written, written_bytes = flow.written, flow.written_bytes
            room = flow.take(entries, room)
            self._written += flow.written - written
            self._written_bytes += flow.written_bytes - written_bytes
            if not flow.pending:
                self.without_credit.pop(number, None)
            elif flow.has_credit:
                self._ready[number] = None
            else:
                self.without_credit[number] = None
        if not entries and not self._closing:
            return None
        frame = InFlight(self._next_sequence, entries, self._take_closing())
        self._next_sequence += 1
        self._in_flight.append(frame)
        return frame.out()

    # --- what is no longer used -----------------------------------------------------------------

    def close_unused(self) -> list[int]:
        """Forget the flows that nothing was sent to since the last call, once the receiver is done with them.

        The next frame tells the receiver, which forgets them too, and that releases of a task are watched.
        Returns these tasks. Called now and then: an account exists while something is outstanding, and a
        little longer.
        """
        tasks: list[int] = []
        for number, flow in list(self._flows.items()):
            if flow.used or flow.pending or not flow.all_released:
                flow.used = False
                continue
            del self._flows[number]
            self._ready.pop(number, None)
            self.without_credit.pop(number, None)
            if flow.sent_messages:
                self._closing[number] = None
                self._exceptions.pop(number, None)
            task, forwarded = task_and_forwarded(number)
            self._flows_to[task].remove(flow)
            if not self._flows_to[task]:
                del self._flows_to[task]
            if not forwarded:
                tasks.append(task)
        return tasks

    @property
    def closing(self) -> bool:
        """Whether the next frame has flows to close."""
        return bool(self._closing)

    def _take_closing(self) -> Sequence[int]:
        if not self._closing:
            return ()
        closing, self._closing = tuple(self._closing), {}
        for number in closing:
            if number in self._flows:  # used again meanwhile
                self._flows[number].since = self._next_sequence
            else:
                self._closed[number] = self._next_sequence
        return closing

    # --- what the receiver says ---------------------------------------------------------------

    def update(self, update: AckUpdate) -> list[Settled]:
        """Take in an acknowledgement with its grants and refusals; return what it settles.

        A repeated one changes nothing. Never pass one for which missed() returns True.
        Raises ProtocolError if it acknowledges a frame that was never sent.
        """
        self._check_sent(update)
        settled: list[Settled] = []
        self._refuse(update.refusals, settled)
        while self._in_flight and self._in_flight[0].sequence <= update.sequence:
            for entry in self._in_flight.popleft().entries:
                flow = self._flows[entry.group.flow]
                if entry.retain:
                    flow.unprocessed.append(entry)
                    continue
                self._settle(entry, None, settled)
                if entry.token is not None:
                    flow.unprocessed.append(settled[-1])
        self.acknowledged = max(self.acknowledged, update.sequence)
        if self._closed:
            self._closed = {
                number: frame for number, frame in self._closed.items() if frame > self.acknowledged
            }
        while self._resend and self._resend[0].sequence <= update.sequence:
            self._resend.popleft()
        for grant in update.grants:
            self._grant(grant, update.sequence, settled)
        return settled

    def missed(self, update: AckUpdate) -> bool:
        """Return True if an acknowledgement before this one was lost, perhaps with refusals in it."""
        return update.after > self.acknowledged

    @property
    def full(self) -> bool:
        """Whether the bound on unacknowledged frames is reached, and messages wait behind it."""
        return len(self._in_flight) >= MAX_FRAMES_IN_FLIGHT and bool(self._ready)

    def waiting_tasks(self) -> set[int]:
        """Return the tasks with messages that were not written yet."""
        return {task_and_forwarded(number)[0] for number in (*self._ready, *self.without_credit)}

    @property
    def waiting(self) -> bool:
        """Whether the receiver still owes an acknowledgement or release. If none comes, send a probe."""
        return bool(self.messages) or any(flow.unprocessed for flow in self._flows.values())

    def _check_sent(self, update: AckUpdate) -> None:
        if update.sequence >= self._next_sequence:
            raise ProtocolError(
                f"frame {update.sequence} was acknowledged, and {self._next_sequence - 1} were sent"
            )

    def _grant(self, grant: Grant, sequence: int, settled: list[Settled]) -> None:
        flow = self._flows.get(grant.flow)
        if flow is None:
            if grant.flow in self._exceptions:
                self._exceptions[grant.flow] = grant
            return
        if sequence < flow.since or grant.flow in self._closing:
            return  # it is about a flow that was closed
        flow.limit_messages = max(flow.limit_messages, grant.messages)
        flow.limit_bytes = max(flow.limit_bytes, grant.size_bytes)
        flow.released = max(flow.released, grant.processed)
        if flow.pending:
            self._ready[grant.flow] = None
            if flow.has_credit:
                self.without_credit.pop(grant.flow, None)
        while flow.unprocessed and flow.processed + flow.unprocessed[0].messages <= grant.processed:
            done = flow.unprocessed.popleft()
            flow.processed += done.messages
            if isinstance(done, Entry):
                self._settle(done, None, settled)
            else:
                self._released.append(done)

    def _refuse(self, refusals: Iterable[Refusal], settled: list[Settled]) -> None:
        by_frame: dict[int, dict[int, DropReason]] = {}
        for refusal in refusals:
            reason = DropReason.UNKNOWN_TASK if refusal.code == "UNKNOWN_TASK" else DropReason.REFUSED
            by_frame.setdefault(refusal.sequence, {}).setdefault(
                flow_of(refusal.task, refusal.forwarded), reason
            )
        first = self._in_flight[0].sequence if self._in_flight else 0
        for sequence, reasons in by_frame.items():
            if not first <= sequence < first + len(self._in_flight):
                continue
            frame = self._in_flight[sequence - first]  # frames are numbered without gaps
            kept = []
            for entry in frame.entries:
                if (why := reasons.get(entry.group.flow)) is None:
                    kept.append(entry)
                else:
                    self._settle(entry, why, settled)
                    self._uncount(entry.group)
            frame.entries = kept

    def _uncount(self, group: TaskGroup) -> None:
        """Take back what was counted of a refused group: neither side counts it."""
        flow = self._flows[group.flow]
        flow.sent_messages -= len(group)
        flow.sent_bytes -= len(group.data)
        if flow.pending and flow.has_credit:
            self._ready[group.flow] = None
            self.without_credit.pop(group.flow, None)

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
        """Take an entry of so many messages off the counts."""
        flow = self._flows[entry.group.flow]
        self.messages -= messages
        self.size_bytes -= size_bytes
        flow.held -= messages
        if not entry.age:
            flow.written -= messages
            flow.written_bytes -= size_bytes
            self._written -= messages
            self._written_bytes -= size_bytes

    def take_released(self) -> list[Settled]:
        """Take out what the receiver released since the last call; only messages with a token.

        A release comes after the settlement; at once for refused messages, or if the receiver is gone.
        """
        released, self._released = self._released, []
        return released

    def all_released(self, task: int) -> bool:
        """Whether the receiver has released every message to a task, and none is held here."""
        return all(flow.all_released for flow in self._flows_to.get(task, ()))

    def has_unreleased_before(self, task: int, workers: Collection[int], entry_sequence: int) -> bool:
        """Return True while the receiver has unreleased messages with a lower entry sequence.

        workers: the numbers of the entry workers that count; 0 stands for this sender.
        """
        return any(
            flow.highest < entry_sequence and not flow.all_released and flow.worker in workers
            for flow in self._flows_to.get(task, ())
        )

    # --- the end --------------------------------------------------------------------------------

    def abandon(self, reason: DropReason) -> list[Settled]:
        """Give up every held message, and return it.

        In the mode `queued`, messages that the receiver has accepted were kept only in case it dies. They
        count as acknowledged, and nobody has released them.
        """
        settled: list[Settled] = []
        if not self._retain:
            for flow in self._flows.values():
                accepted, released = flow.unsettled()
                self._released += released
                settled += [self._account(entry, None) for entry in accepted]
        for entry in self._remove_all():
            self._settle(entry, reason, settled)
        return settled

    def take_back(self) -> list[tuple[TaskGroup, Any]]:
        """Take out every held message as if it had never been accepted; in order within each task.

        Messages that were on the way may have arrived all the same, and are marked as redelivered.
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
        for flow in self._flows.values():
            kept, released = flow.unsettled()
            entries += kept
            self._released += released
        entries += [entry for frame in self._in_flight for entry in frame.entries]
        entries += [entry for flow in self._flows.values() for entry in flow.pending]
        for flow in self._flows.values():
            flow.pending.clear()
        self._in_flight.clear()
        self._resend.clear()
        self._ready.clear()
        self.without_credit.clear()
        return entries

    def ledger(self) -> LedgerSnapshot:
        """Return the balance; pending messages are counted entry by entry."""
        pending = sum(len(entry.group) for frame in self._in_flight for entry in frame.entries)
        for flow in self._flows.values():
            pending += sum(len(entry.group) for entry in flow.pending)
            pending += sum(len(each.group) for each in flow.unprocessed if isinstance(each, Entry))
        return self._ledger.snapshot(pending)
