"""What a sender has accepted and still answers for, and what becomes of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from itertools import chain
from typing import Any

from tuplewire.config import AckMode, SessionSettings
from tuplewire.group import TaskGroup
from tuplewire.session.flow import Entry, Flow, InFlight
from tuplewire.session.ledger import DropReason, Ledger, LedgerSnapshot, Settled


class HeldMessages:
    """The messages of a session that are not settled, flow by flow and frame by frame, and their ledger."""

    def __init__(self, settings: SessionSettings) -> None:
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

    def unkept(self) -> int:
        """Return how many of the held messages nobody else is known to have, neither receiver nor sender."""
        waiting = (entry.group for flow in self._flows.values() for entry in flow.pending)
        on_the_way = (entry.group for frame in self._in_flight for entry in frame.entries)
        # Who forwards for another worker calls messages kept because it keeps them itself.
        return sum(len(group) for group in chain(waiting, on_the_way) if group.forwarded or not group.kept)

    def with_receiver(self) -> int:
        """Return how many messages the receiver has acknowledged and not released, and nobody keeps here.

        At most so many: a receiver that is not asked to tell each release does so when it is worth a grant,
        and when everything to a task is released.
        """
        count = sum(flow.unreleased for flow in self._flows.values())
        return count - sum(len(entry.group) for frame in self._in_flight for entry in frame.entries)

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
