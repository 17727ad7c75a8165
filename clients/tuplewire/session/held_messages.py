"""What a sender has accepted and still answers for, its bounds, and what becomes of it.

The policy `drop_oldest`: how much must go for an offer to fit, and what.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from heapq import heappop, heappush, heapreplace
from itertools import chain
from types import MappingProxyType
from typing import Any

from tuplewire.session.departure import OfEntry
from tuplewire.session.flow import Entry, Flow, InFlight
from tuplewire.session.ledger import DropReason, Ledger, LedgerSnapshot, Settled
from tuplewire.session.pieces import cut_off
from tuplewire.settings.config import AckMode, Overflow, SessionSettings
from tuplewire.values.group import TaskGroup, entry_worker, task_and_forwarded


def excess(held: int, offered: int, bound: int) -> int:
    """Return how much of `held` is in the way of an offer.

    An offer that is itself over the bound is taken only when nothing else is held, so all of it is.
    """
    over = held + offered - bound
    return min(held, over) if over > 0 else 0


class OldestTask:
    """Finds the task with the oldest message, at a cost that does not grow with the number of messages.

    A heap holds, for each task, the age of its first message at some earlier time. That message may be gone.
    find() notices this when the task comes up, and corrects the entry.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []
        self._known: set[int] = set()

    def add(self, task: int, age: int) -> None:
        """Note a message that was put behind the others of its task; ages never fall."""
        if task not in self._known:
            self._known.add(task)
            heappush(self._heap, (age, task))

    def find(self, age_of: Callable[[int], int]) -> int:
        """Return the task with the oldest message; there must be one.

        age_of: returns the age of a task's oldest message, 0 when it has none.
        """
        heap = self._heap
        while True:
            known, task = heap[0]
            age = age_of(task)
            if age == known:
                return task
            if age:
                heapreplace(heap, (age, task))
            else:
                heappop(heap)
                self._known.discard(task)


class HeldMessages:
    """The messages of a session that are not settled, flow by flow and frame by frame, and their ledger.

    They are bounded by the settings in messages and bytes, in total and per task. A batch larger than a bound
    is taken when nothing else counts against that bound. The policy `drop_oldest` makes room: it gives up
    messages that have never been written. Written ones stay, as they may have arrived.
    """

    def __init__(self, settings: SessionSettings) -> None:
        self._settings = settings
        self._drops_oldest = settings.overflow is Overflow.DROP_OLDEST
        self._oldest = OldestTask()
        self._overflowed: list[Settled] = []
        self._retain = settings.ack_mode is AckMode.PROCESSED
        self._flows: dict[int, Flow] = {}
        self._flows_to: dict[int, list[Flow]] = {}
        self._ready: dict[int, None] = {}
        self._in_flight: deque[InFlight] = deque()
        self._resend: deque[InFlight] = deque()
        self._ledger = Ledger()
        self._released: list[Settled] = []
        self._written = self._written_bytes = 0
        self.without_credit: dict[int, None] = {}
        """The flows with messages to send and no credit for them, as of the last next_frame()."""
        self.messages = 0
        """Held messages: waiting, on the way, or not processed."""
        self.size_bytes = 0
        """The same in payload bytes."""

    def held_of(self, number: int) -> int:
        """Return how many messages of a flow are held."""
        flow = self._flows.get(number)
        return flow.held if flow is not None else 0

    def _settle(self, entry: Entry, dropped: DropReason | None, settled: list[Settled]) -> None:
        settled.append(self._account(entry, dropped))
        if entry.token is not None and (dropped is not None or entry.retain):
            self._released.append(settled[-1])

    def _account(self, entry: Entry, dropped: DropReason | None) -> Settled:
        group = entry.group
        count, size = len(group), group.size_bytes
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

    def unkept(self) -> int:
        """Return how many of the held messages nobody else is known to have, neither receiver nor sender."""
        waiting = (entry.group for flow in self._flows.values() for entry in flow.pending)
        on_the_way = (entry.group for frame in self._in_flight for entry in frame.entries)
        return sum(len(group) for group in chain(waiting, on_the_way) if not group.kept)

    def with_receiver(self) -> int:
        """Return how many messages the receiver has acknowledged and not released, and nobody keeps here.

        At most so many: a receiver that is not asked to tell each release does so when it is worth a grant,
        and when everything to a task is released.
        """
        count = sum(flow.unreleased for flow in self._flows.values())
        return count - sum(len(entry.group) for frame in self._in_flight for entry in frame.entries)

    @property
    def receiver_has_none(self) -> bool:
        """True if the receiver has released all messages that were written to it."""
        return not self._in_flight and all(
            flow.sent_messages <= flow.released and not flow.unprocessed for flow in self._flows.values()
        )

    def unreleased(self) -> dict[OfEntry, int]:
        """Return of whom messages were handed over that the receiver has not released.

        With each stands the last entry sequence of these. The number of an entry worker is 0 for this sender.
        """
        found: dict[OfEntry, int] = {}
        for number, flow in self._flows.items():
            if not flow.all_released:
                key = task_and_forwarded(number)[0], entry_worker(flow.route)
                found[key] = max(flow.highest, found.get(key, 0))
        return found

    def receiver_ended(self) -> None:
        """Take what the receiver has as released: it has ended in good order, and has passed it on.

        What is kept here until it is processed stays; whoever waits for that has not heard of it.
        """
        for flow in self._flows.values():
            if flow.held or any(isinstance(each, Entry) for each in flow.unprocessed):
                continue
            _, released = flow.unsettled()
            self._released += released
            flow.processed = flow.released = flow.sent_messages

    def take_released(self) -> list[Settled]:
        """Take out what the receiver released since the last call; only messages with a token.

        A release comes after the settlement; at once for refused messages, or if the receiver is gone.
        """
        released, self._released = self._released, []
        return released

    def all_released(self, task: int) -> bool:
        """Whether the receiver has released every message to a task, and none is held here."""
        return all(flow.all_released for flow in self._flows_to.get(task, ()))

    def route_before(self, task: int, workers: Collection[int], entry_sequence: int) -> int | None:
        """Return by which route the last messages went that the receiver has not released, and are earlier.

        workers: the numbers of the entry workers that count; 0 stands for this sender. entry_sequence: of the
        later ones. None: there are none.
        """
        found = [
            (flow.highest, flow.route)
            for flow in self._flows_to.get(task, ())
            if flow.highest < entry_sequence and not flow.all_released and entry_worker(flow.route) in workers
        ]
        return max(found)[1] if found else None

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
            self._let_go(entry, len(group), group.size_bytes)
            self._ledger.accepted -= len(group)
            left.append((group if entry.age else group.as_redelivered(), entry.token))
        # Those of one entry worker may be in several flows.
        return sorted(left, key=lambda each: each[0].entry_sequence)

    def _make_ready(self, number: int) -> None:
        """Let a flow have its turn. Forwarded messages go first: others of their task may follow them."""
        if number < 0 and number not in self._ready:
            before = {each: None for each in self._ready if each < 0}
            self._ready = {**before, number: None, **self._ready}
        else:
            self._ready[number] = None

    def _forwarded_first(self) -> list[tuple[int, Flow]]:
        """Return the flows: those of forwarded messages first, as others of their task may follow them.

        One of these may follow another of them, too: the flow with the earlier messages comes first.
        """

        def place(each: tuple[int, Flow]) -> tuple[bool, int]:
            number, flow = each
            forwarded = number < 0 and bool(flow.pending)
            return number >= 0, flow.pending[0].group.entry_sequence if forwarded else 0

        return sorted(self._flows.items(), key=place)

    def _remove_all(self) -> list[Entry]:
        entries: list[Entry] = []
        for _, flow in self._forwarded_first():
            kept, released = flow.unsettled()
            entries += kept
            self._released += released
        entries += [entry for frame in self._in_flight for entry in frame.entries]
        entries += [entry for _, flow in self._forwarded_first() for entry in flow.pending]
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

    # --- bounds -----------------------------------------------------------------------------

    def fits(
        self,
        groups: Iterable[TaskGroup],
        more_messages: int = 0,
        more_bytes: int = 0,
        more_to: Mapping[int, int] = MappingProxyType({}),
    ) -> bool:
        """Whether there is room for messages beside so many others. more_to: those of each flow."""
        settings = self._settings
        messages = size = 0
        to_task: dict[int, int] = {}
        for group in groups:
            flow, count = group.flow, len(group)
            messages += count
            size += group.size_bytes
            offered = to_task[flow] = to_task.get(flow, 0) + count
            held = self.held_of(flow) + more_to.get(flow, 0)
            if excess(held, offered, settings.max_pending_task_messages):
                return False
        return not (
            excess(self.messages + more_messages, messages, settings.max_pending_messages)
            or excess(self.size_bytes + more_bytes, size, settings.max_pending_bytes)
        )

    def _short_of_room(self, entries: Iterable[Entry]) -> bool:
        """Whether half of a bound is used, or a flow's credit, and no frame asks for it yet."""
        settings, flows = self._settings, self._flows
        short = (
            bool(self.without_credit)
            or self.messages * 2 >= settings.max_pending_messages
            or self.size_bytes * 2 >= settings.max_pending_bytes
            or any(flows[each.group.flow].held * 2 >= settings.max_pending_task_messages for each in entries)
        )
        return short and not any(frame.asks for frame in self._in_flight)

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

    def _make_room(self, groups: Sequence[TaskGroup]) -> bool:
        """Give up the oldest messages that have never been written, no more than needed for these to fit.

        Returns False, and gives up nothing, if the written messages alone leave no room.
        """
        settings, flows = self._settings, self._flows
        messages, size = sum(map(len, groups)), sum(group.size_bytes for group in groups)
        most = self.messages - excess(self.messages, messages, settings.max_pending_messages)
        most_bytes = self.size_bytes - excess(self.size_bytes, size, settings.max_pending_bytes)
        crowded = self._crowded(groups)
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
