"""Pending messages of a sender, their bounds, their ledger, and the policy `drop_oldest`.

Used by SendSession (send.py), which inherits from PendingMessages, the send buffer and the worker's
connections. Owns every accepted message until it is settled. No I/O. Not thread-safe.
Design: docs/design/sessions.md; docs/design/credit.md for `drop_oldest`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import heappop, heapreplace
from itertools import chain
from types import MappingProxyType
from typing import Any

from tuplewire.session.flow import Flow, InFlightFrame, PendingEntry
from tuplewire.session.ledger import DropReason, Ledger, LedgerSnapshot, SettledMessages
from tuplewire.session.pieces import split_min_head
from tuplewire.settings.config import AckMode, Overflow, SessionSettings
from tuplewire.values.group import SIZE_BYTES, TaskGroup, entry_worker, get_count, split_flow


def count_to_drop(held: int, offered: int, bound: int) -> int:
    """Return the number of `held` messages to drop so that `offered` fits: all if it exceeds the bound."""
    return max(0, min(held, held + offered - bound))


class PendingMessages:
    """The pending messages of a session, by flow and by frame, and their ledger. Not thread-safe.

    The settings bound their messages and bytes, in total and per task. A batch above a bound is accepted if
    nothing else counts against that bound. The policy `drop_oldest` drops messages that were never written.
    Written messages are not dropped, because they may have arrived.
    """

    def __init__(self, settings: SessionSettings) -> None:
        self._settings = settings
        self._drops_oldest = settings.overflow is Overflow.DROP_OLDEST
        self._oldest_orders: list[tuple[int, int]] = []
        """For `drop_oldest`, a heap of each flow's first unwritten order at an earlier time, and the flow."""
        self._flows_in_heap: set[int] = set()
        self._retains_all = settings.ack_mode is AckMode.PROCESSED
        self._flows: dict[int, Flow] = {}
        self._flows_by_task: dict[int, list[Flow]] = {}
        self._ready: dict[int, None] = {}
        self._in_flight: deque[InFlightFrame] = deque()
        self._resend: deque[InFlightFrame] = deque()
        self._ledger = Ledger()
        self.settled: list[SettledMessages] = []
        """Messages that were settled since the last take_settled()."""
        self._released: list[SettledMessages] = []
        self._written = self._written_bytes = 0
        self.blocked_flows: dict[int, None] = {}
        """Flows with messages but without credit; next_frame() adds them."""
        self.messages = self.size_bytes = 0
        """Pending messages (waiting, in flight, or retained until processed), and their bytes."""

    def held_of(self, flow_id: int) -> int:
        """Return the number of pending messages of a flow."""
        flow = self._flows.get(flow_id)
        return flow.pending_messages if flow is not None else 0

    def _settle(self, entry: PendingEntry, reason: DropReason | None, *, releases: bool = True) -> None:
        group = entry.group
        count, size = group.count, group.size_bytes
        self._subtract(entry, count, size)
        if reason is None:
            self._ledger.acknowledged += count
        else:
            self._ledger.dropped[reason] += count
        settled = SettledMessages(entry.inbound, group.task, count, size, reason)
        self.settled.append(settled)
        # A message that is settled by its acknowledgement alone is released later, by a grant.
        if releases and entry.inbound is not None and (reason is not None or entry.retain):
            self._released.append(settled)

    def _subtract(self, entry: PendingEntry, messages: int, size_bytes: int) -> None:
        flow = self._flows[entry.group.flow_id]
        self.messages -= messages
        self.size_bytes -= size_bytes
        flow.pending_messages -= messages
        if not entry.order:
            flow.written -= messages
            flow.written_bytes -= size_bytes
            self._written -= messages
            self._written_bytes -= size_bytes

    def count_only_here(self) -> int:
        """Return the number of pending messages that are not known to be stored by another process."""
        waiting = (entry.group for flow in self._flows.values() for entry in flow.waiting)
        in_flight = (entry.group for frame in self._in_flight for entry in frame.entries)
        return sum(group.count for group in chain(waiting, in_flight) if not group.retained_upstream)

    def count_at_receiver(self) -> int:
        """Return an upper bound on the messages that only the receiver has: acknowledged, but not released.

        Messages that are retained here do not count. The number is a bound because a receiver may delay the
        report of a release until it is worth a grant, or until everything to a task is released.
        """
        count = sum(flow.receiver_only_count for flow in self._flows.values())
        # Frames in flight count as sent, but this session still has their messages.
        return count - sum(entry.group.count for frame in self._in_flight for entry in frame.entries)

    def waiting_tasks(self) -> set[int]:
        """Return the tasks with messages that wait to be sent."""
        return {split_flow(flow_id)[0] for flow_id in (*self._ready, *self.blocked_flows)}

    @property
    def awaits_update(self) -> bool:
        """True if an acknowledgement or release is outstanding. If it is overdue, send a probe."""
        return bool(self.messages) or any(flow.unreleased for flow in self._flows.values())

    @property
    def all_written_released(self) -> bool:
        """True if the receiver has released all messages that were written to it."""
        return not self._in_flight and not any(
            flow.unreleased or flow.sent_messages > flow.released_messages for flow in self._flows.values()
        )

    def last_unreleased_sequences(self) -> dict[tuple[int, int], int]:
        """Return the last accepted entry sequence for each task and entry worker with unreleased messages.

        The number of the entry worker is 0 for messages of this sender.
        """
        found: dict[tuple[int, int], int] = {}
        for flow_id, flow in self._flows.items():
            if not flow.all_released:
                key = split_flow(flow_id)[0], entry_worker(flow.path)
                found[key] = max(flow.highest_entry_sequence, found.get(key, 0))
        return found

    def on_receiver_shutdown(self) -> None:
        """Count the receiver's messages as released: it has forwarded them and shut down cleanly.

        Messages retained until they are processed are not released: their sender has not been notified yet.
        """
        for flow in self._flows.values():
            # A flow with pending or retained messages is not finished by the receiver's shutdown.
            if flow.pending_messages or any(isinstance(each, PendingEntry) for each in flow.unreleased):
                continue
            self._take_unprocessed(flow)
            flow.removed_count = flow.released_messages = flow.sent_messages

    def take_settled(self) -> list[SettledMessages]:
        """Return and clear the messages that were settled since the last call."""
        settled, self.settled = self.settled, []
        return settled

    def take_released(self) -> list[SettledMessages]:
        """Return and clear the messages with an inbound session that were released since the last call.

        A message is released after it is settled. Messages that the receiver will never release are included
        immediately: dropped messages, and settled ones once the receiver is lost.
        """
        released, self._released = self._released, []
        return released

    def all_released(self, task: int) -> bool:
        """Return True if the receiver has released every message to a task, and none is pending here."""
        return all(flow.all_released for flow in self._flows_by_task.get(task, ()))

    def flow_path_before(self, task: int, entry_workers: Collection[int], entry_sequence: int) -> int | None:
        """Return the path of the last unreleased messages before `entry_sequence`; None if there are none.

        Only messages of the entry workers `entry_workers` count, by number; 0 is this sender.
        """
        unreleased = (flow for flow in self._flows_by_task.get(task, ()) if not flow.all_released)
        found = [
            (flow.highest_entry_sequence, flow.path)
            for flow in unreleased
            if flow.highest_entry_sequence < entry_sequence and entry_worker(flow.path) in entry_workers
        ]
        return max(found)[1] if found else None

    def drop_all(self, reason: DropReason) -> None:
        """Drop all pending messages.

        In the mode `queued`, messages that the receiver has accepted count as acknowledged, but not as
        released: they were retained only in case the receiver fails.
        """
        # In the mode `processed` these messages are dropped, because they are not known to be processed.
        if not self._retains_all:
            for flow in self._flows.values():
                for entry in self._take_unprocessed(flow):
                    self._settle(entry, None, releases=False)
        for entry in self._remove_all():
            self._settle(entry, reason)

    def withdraw(self) -> list[tuple[TaskGroup, Any]]:
        """Remove and return all pending messages as if they had never been accepted; in order for each task.

        Messages that were written may have arrived, and are marked as redelivered.
        """
        withdrawn: list[tuple[TaskGroup, Any]] = []
        for entry in self._remove_all():
            group = entry.group
            self._subtract(entry, group.count, group.size_bytes)
            self._ledger.accepted -= group.count
            withdrawn.append((group if entry.order else group.as_redelivered(), entry.inbound))
        # Messages of one entry worker may be in several flows.
        return sorted(withdrawn, key=lambda each: each[0].entry_sequence)

    def _make_ready_first(self, flow_id: int) -> None:
        """Mark a flow of forwarded messages as ready: others of their task must follow them."""
        if flow_id not in self._ready:
            before = {each: None for each in self._ready if each < 0}
            self._ready = {**before, flow_id: None, **self._ready}

    def _forwarded_first(self) -> list[tuple[int, Flow]]:
        """Return the flows: forwarded ones first, by first entry sequence, as others may follow them."""

        def sort_key(each: tuple[int, Flow]) -> tuple[bool, int]:
            flow_id, flow = each
            forwarded = flow_id < 0 and bool(flow.waiting)
            return flow_id >= 0, flow.waiting[0].group.entry_sequence if forwarded else 0

        return sorted(self._flows.items(), key=sort_key)

    def _take_unprocessed(self, flow: Flow) -> list[PendingEntry]:
        """Remove and return the retained messages that the receiver will not release; release the others."""
        unprocessed, flow.unreleased = flow.unreleased, deque()
        self._released += [each for each in unprocessed if isinstance(each, SettledMessages)]
        return [each for each in unprocessed if isinstance(each, PendingEntry)]

    def _remove_all(self) -> list[PendingEntry]:
        # The order of sending: retained messages, then frames in flight, then waiting messages.
        entries: list[PendingEntry] = []
        for _, flow in self._forwarded_first():
            entries += self._take_unprocessed(flow)
        entries += [entry for frame in self._in_flight for entry in frame.entries]
        entries += [entry for _, flow in self._forwarded_first() for entry in flow.waiting]
        for flow in self._flows.values():
            flow.waiting.clear()
        self._in_flight.clear()
        self._resend.clear()
        self._ready.clear()
        self.blocked_flows.clear()
        return entries

    def ledger(self) -> LedgerSnapshot:
        """Return the balance. Pending messages are counted, not derived from other counts."""
        pending = sum(entry.group.count for frame in self._in_flight for entry in frame.entries)
        for flow in self._flows.values():
            pending += sum(entry.group.count for entry in flow.waiting)
            pending += sum(each.group.count for each in flow.unreleased if isinstance(each, PendingEntry))
        return self._ledger.snapshot(pending)

    # --- bounds -----------------------------------------------------------------------------

    def fits(
        self,
        groups: Collection[TaskGroup],
        more_messages: int = 0,
        more_bytes: int = 0,
        by_flow: Mapping[int, int] = MappingProxyType({}),
    ) -> bool:
        """Return True if these messages fit in addition to the pending ones and to the other arguments."""
        settings = self._settings
        messages, size = sum(map(get_count, groups)), sum(map(SIZE_BYTES, groups))
        held, held_bytes = self.messages + more_messages, self.size_bytes + more_bytes
        return not (
            (held and held + messages > settings.max_pending_messages)
            or (held_bytes and held_bytes + size > settings.max_pending_bytes)
            # All flows together hold at least as much as any one.
            or (held + messages > settings.max_pending_task_messages and self._full_flows(groups, by_flow))
        )

    def _is_short_of_space(self, entries: Iterable[PendingEntry]) -> bool:
        """Return True if half of a bound or all of a flow's credit is used, and no frame requests an ack."""
        settings, flows = self._settings, self._flows
        short = (
            bool(self.blocked_flows)
            or self.messages * 2 >= settings.max_pending_messages
            or self.size_bytes * 2 >= settings.max_pending_bytes
            or (
                self.messages * 2 >= settings.max_pending_task_messages  # otherwise no flow is half full
                and any(
                    flows[each.group.flow_id].pending_messages * 2 >= settings.max_pending_task_messages
                    for each in entries
                )
            )
        )
        # With a request in flight, an acknowledgement that frees space will follow anyway.
        return short and not any(frame.ack_requested for frame in self._in_flight)

    def _full_flows(self, groups: Iterable[TaskGroup], by_flow: Mapping[int, int]) -> dict[int, int]:
        """Return the flows in which `groups` do not fit, with the number of messages that may remain."""
        limit = self._settings.max_pending_task_messages
        offered: dict[int, int] = {}
        over_limit: dict[int, int] = {}
        for group in groups:
            flow_id = group.flow_id
            count = offered[flow_id] = offered.get(flow_id, 0) + group.count
            held = self.held_of(flow_id) + by_flow.get(flow_id, 0)
            if too_many := count_to_drop(held, count, limit):
                over_limit[flow_id] = held - too_many
        return over_limit

    def _drop_for_space(self, groups: Sequence[TaskGroup]) -> bool:
        """Drop the oldest unwritten messages, as few as necessary for `groups` to fit.

        Returns False, without dropping any, if the written messages alone use up too much space.
        """
        settings, flows = self._settings, self._flows
        messages, size = sum(map(get_count, groups)), sum(map(SIZE_BYTES, groups))
        max_messages = self.messages - count_to_drop(self.messages, messages, settings.max_pending_messages)
        max_bytes = self.size_bytes - count_to_drop(self.size_bytes, size, settings.max_pending_bytes)
        over_limit = self._full_flows(groups, {})
        # Check all bounds before anything is dropped: a failed offer must not cost messages.
        if self._written > max_messages or self._written_bytes > max_bytes:
            return False
        if any(flows[flow_id].written > stay for flow_id, stay in over_limit.items()):
            return False
        # The bounds of single tasks come first: dropping for them frees space in total, too.
        for flow_id, stay in over_limit.items():
            while (too_many := flows[flow_id].pending_messages - stay) > 0:
                self._drop_unwritten(flow_id, too_many, 0)
        while self.messages > max_messages or self.size_bytes > max_bytes:
            excess_messages, excess_bytes = self.messages - max_messages, self.size_bytes - max_bytes
            self._drop_unwritten(self._find_oldest_flow(), excess_messages, excess_bytes)
        return True

    def _find_oldest_flow(self) -> int:
        """Return the flow with the oldest unwritten message; there must be one.

        The cost is independent of the number of messages. The first message of a flow may have been sent or
        dropped since its order was added to the heap, so the order is corrected here.
        """
        heap = self._oldest_orders
        while True:
            known, flow_id = heap[0]
            order = self._flows[flow_id].first_unwritten_order if flow_id in self._flows else 0
            if order == known:
                return flow_id
            if order:  # the first message has changed: correct its order, and check the new minimum
                heapreplace(heap, (order, flow_id))
            else:
                heappop(heap)
                self._flows_in_heap.discard(flow_id)

    def _drop_unwritten(self, flow_id: int, messages: int, size_bytes: int) -> None:
        """Drop a flow's oldest unwritten entry, or only its head if that is sufficient."""
        flow = self._flows[flow_id]
        first = flow.first_unwritten_index
        # Entries that were written before are in front and must stay: rotate them away, and back below.
        flow.waiting.rotate(-first)
        entry = flow.waiting.popleft()
        dropped, *rest = split_min_head(entry.group, messages, size_bytes)
        flow.waiting.extendleft(entry.with_group(piece) for piece in reversed(rest))
        flow.waiting.rotate(first)
        if not flow.waiting:
            self.blocked_flows.pop(flow_id, None)
        self._settle(entry.with_group(dropped), DropReason.OVERFLOW)
