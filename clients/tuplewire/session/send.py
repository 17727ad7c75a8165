"""The sending end of a session: accepts messages, builds frames, and settles messages.

Used by SendingEnd (connection/sending_end.py), which drives a SendSession, and by AckHandler, which applies
the receiver's updates. Owns every accepted message until it is acknowledged or dropped. A new stream
repeats the frames that the receiver has not accepted, with their old numbers. A receiver without memory of
the session gets all messages again, in new frames and marked as redelivered. No I/O. Not thread-safe. Design:
docs/design/sessions.md.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Sequence
from heapq import heappush
from typing import Any

from tuplewire.errors import ProtocolError
from tuplewire.session.ack_requests import AckRequestPolicy
from tuplewire.session.flow import Flow, InFlightFrame, OutFrame, PendingEntry
from tuplewire.session.ledger import DropReason
from tuplewire.session.pending_messages import PendingMessages
from tuplewire.session.pieces import frame_pieces, split_by_limit
from tuplewire.settings.config import SessionSettings
from tuplewire.values.group import TaskGroup, entry_worker, flow_id_of, split_flow, worker_number
from tuplewire.wire.messaging_pb2 import ERROR_CODE_UNKNOWN_TASK, Ack, Refusal, TaskCredit, Welcome

MAX_QUICK_FRAMES_IN_FLIGHT = 8
"""The maximum number of unacknowledged frames while frames follow each other quickly. A stream would queue
any number of frames; held back here, messages are merged into few large frames. Rare frames do not request an
immediate acknowledgement, and up to 64 of them may be unacknowledged."""
_MAX_ACK_REQUESTS = 2  # requests for an acknowledgement in flight; see docs/design/credit.md


class SendSession(PendingMessages):
    """The sender's state of one session, which may use several streams in turn. Not thread-safe."""

    def __init__(self, settings: SessionSettings) -> None:
        super().__init__(settings)
        self._next_sequence = 1
        self.has_more = False
        """True if messages with credit, or repeated frames, were left by the last next_frame()."""
        self._initial_credit = 0, 0
        """The first credit of a flow, in messages and bytes, unless `_reduced_credit` has its own."""
        self._reduced_credit: dict[int, tuple[int, int]] = {}
        """The first credit of flows to tasks with a smaller share, by flow id, until the flow is closed."""
        self._flows_to_close: dict[int, None] = {}
        """The ids of removed flows, which the next frame reports to the receiver."""
        self._closed_in_frame: dict[int, int] = {}
        """The frame that closed a removed flow, by flow id, until the frame is acknowledged."""
        self._ack_requests = AckRequestPolicy()
        self.acked_frame = 0
        """The last frame that the receiver has acknowledged."""
        self.session_id = 0
        """Identifies the receiver's record of this session; 0 before the first welcome."""
        self.receiver_ended_cleanly = False
        """True if the receiver drains, has departed, or got the goodbye: it accounts for its messages."""
        self.worker_incarnation = 0
        self._lost_entry_worker = 0
        """The number of the receiver's previous process as an entry worker; 0 if none is known."""
        self.possibly_lost = 0
        """An upper bound on the messages that were lost with a receiver. It had acknowledged but not released
        them, and they are not retained here."""
        self.max_message_bytes = settings.max_message_bytes
        """The maximum size of a message: the smaller limit of this sender and the receiver."""
        self._max_frame_bytes = settings.max_frame_bytes

    def offer(
        self, groups: Sequence[TaskGroup], inbound: Any = None, *, retain: bool = False, now_micros: int = 0
    ) -> bool:
        """Accept all messages and return True; if they do not fit, even with `drop_oldest`, return False.

        Args:
            inbound: The session that a worker received the messages on. take_settled() returns it with them.
            retain: Retain these messages until they are processed, as in the mode `processed`.
            now_micros: The time of acceptance in microseconds since 1970, for groups without one.
        """
        if not self.fits(groups) and not (self._drops_oldest and self._drop_for_space(groups)):
            return False
        self.accept(groups, inbound, retain=retain, now_micros=now_micros)
        return True

    def accept(
        self, groups: Iterable[TaskGroup], inbound: Any = None, *, retain: bool = False, now_micros: int = 0
    ) -> None:
        """Accept messages without checking the bounds. Call fits() first; for the arguments see offer()."""
        order = self._ledger.accepted + 1
        if lost := self._lost_entry_worker:  # see on_connected()
            groups = [each.as_redelivered() if entry_worker(each.path) == lost else each for each in groups]
        for group in groups:
            flow_id = group.flow_id
            flow = self._flows.get(flow_id)
            if flow is None:
                task, flow_path = split_flow(flow_id)
                first_frame = self._closed_in_frame.pop(flow_id, self.acked_frame)
                flow = self._flows[flow_id] = Flow(flow_path, first_frame)
                self._set_initial_credit(flow_id, flow)
                self._flows_by_task.setdefault(task, []).append(flow)
            micros = group.accepted_micros or now_micros
            for piece in frame_pieces(group, self._max_frame_bytes):
                flow.waiting.append(PendingEntry(piece, inbound, order, retain or self._retains_all, micros))
            if flow.highest_entry_sequence and flow.all_released:
                flow.highest_entry_sequence = 0
            flow.recently_used = True
            messages = group.count
            flow.pending_messages += messages
            if group.entry_sequence:
                flow.highest_entry_sequence = max(flow.highest_entry_sequence, group.next_entry_sequence - 1)
            if flow_id < 0:
                self._make_ready_first(flow_id)
            else:
                self._ready[flow_id] = None
            if self._drops_oldest and flow_id not in self._flows_in_heap:
                self._flows_in_heap.add(flow_id)
                heappush(self._oldest_orders, (order, flow_id))
            self.messages += messages
            self.size_bytes += group.size_bytes
            self._ledger.accepted += messages

    def _set_initial_credit(self, flow_id: int, flow: Flow) -> None:
        """Set a flow's first credit. Forwarded messages need no credit: their entry worker granted it."""
        credit = self._reduced_credit.get(flow_id, self._initial_credit)
        flow.granted_messages, flow.granted_bytes = (sys.maxsize, sys.maxsize) if flow_id < 0 else credit

    def on_connected(self, welcome: Welcome) -> None:
        """Continue over a new stream according to the receiver's welcome.

        1. The receiver resumes at a frame that this sender does not have: raise ProtocolError.
        2. It remembers this session: repeat the frames after its last one, with their old numbers.
        3. It has no memory of this session: repeat all messages in new frames, and mark written messages as
           redelivered. If another process answers, count messages possibly lost with the previous one, and
           mark those that it had accepted from programs: they send copies, which may arrive first.
        """
        accepted = welcome.accepted_sequence
        known = welcome.session_id == self.session_id != 0 and accepted >= self.acked_frame
        if not known and accepted:
            # 1. The receiver would discard this sender's first frames as duplicates.
            raise ProtocolError(
                f"the receiver resumes at frame {accepted} a session that this sender does not have: "
                "give every process its own sender id or incarnation"
            )
        if known:
            # 2. The last acknowledgement may be lost with the stream, and the welcome replaces it.
            # In case 1, this raises an error, so it comes before all changes.
            self.apply_ack(Ack(sequence=accepted, credits=welcome.credits, refusals=welcome.refusals))
            self._resend = deque(self._in_flight)
        elif welcome.worker_incarnation != self.worker_incarnation or not self.worker_incarnation:
            # 3. A process that evicted the session still has its messages. Another one does not have them.
            self.on_receiver_lost()
            if self.worker_incarnation:
                self._mark_returning(worker_number(welcome.worker_id, self.worker_incarnation))
        self.receiver_ended_cleanly = False
        self.worker_incarnation = welcome.worker_incarnation
        self._initial_credit = welcome.initial_credit.messages, welcome.initial_credit.bytes
        self.session_id = welcome.session_id
        if not known:
            # 3. Credits in this welcome are for tasks with a smaller share; see session/shares.py.
            self._reduced_credit = {_flow_id_of(one): (one.messages, one.bytes) for one in welcome.credits}
            self._start_over()
        self._apply_limits(welcome)
        self._ready = {flow_id: None for flow_id, flow in self._forwarded_first() if flow.waiting}
        self.blocked_flows.clear()

    def on_receiver_lost(self) -> None:
        """Count messages that may be lost with the receiver, unless it announced its shutdown."""
        if not self.receiver_ended_cleanly:
            self.possibly_lost += self.count_at_receiver()

    def _mark_returning(self, lost_entry_worker: int) -> None:
        """Mark messages that the previous process of the receiver had accepted from programs."""
        self._lost_entry_worker = lost_entry_worker
        for flow in self._flows.values():
            if entry_worker(flow.path) == lost_entry_worker:
                flow.waiting = deque(each.with_group(each.group.as_redelivered()) for each in flow.waiting)

    def _apply_limits(self, welcome: Welcome) -> None:
        """Apply the receiver's limits: drop messages above its limit, and split groups for smaller frames."""
        settings = self._settings
        self.max_message_bytes = min(settings.max_message_bytes, welcome.max_message_bytes)
        # A frame may exceed its size by one message, and gRPC also counts the columns of lengths.
        max_bytes = max(1, (welcome.max_request_bytes - self.max_message_bytes) // 2)
        frame_bytes = min(settings.max_frame_bytes, max_bytes)
        if frame_bytes == self._max_frame_bytes and self.max_message_bytes == settings.max_message_bytes:
            return
        self._max_frame_bytes = frame_bytes
        for flow in self._flows.values():
            waiting, flow.waiting = flow.waiting, deque()
            for entry in waiting:
                for piece in frame_pieces(entry.group, frame_bytes):
                    for fits, run in split_by_limit(piece, self.max_message_bytes):
                        if fits:
                            flow.waiting.append(entry.with_group(run))
                        else:
                            self._settle(entry.with_group(run), DropReason.TOO_LARGE)

    def _start_over(self) -> None:
        """Move all messages back to the head of their flows: the receiver has no memory of the session."""
        # Retained messages were sent before the frames in flight, so they move to the head last.
        for frame in reversed(self._in_flight):
            for entry in reversed(frame.entries):
                group = entry.group.as_redelivered()
                self._flows[group.flow_id].waiting.appendleft(entry.with_group(group))
        for flow_id, flow in self._flows.items():
            for entry in reversed(self._take_unprocessed(flow)):
                flow.waiting.appendleft(entry.with_group(entry.group.as_redelivered()))
            flow.sent_messages = flow.sent_bytes = flow.released_messages = 0
            flow.removed_count = flow.first_frame = 0
            self._set_initial_credit(flow_id, flow)
        self._in_flight.clear()
        self._resend.clear()
        self._flows_to_close.clear()
        self._closed_in_frame.clear()
        self._next_sequence = 1
        self.acked_frame = 0

    def next_frame(self, now: float = 0.0, *, urgent: bool = False) -> OutFrame | None:
        """Return the next frame: messages with credit, up to a frame's size. None if no frame can be sent.

        `now` is in seconds, from any monotonic clock. `urgent`: a caller waits for the acknowledgement.
        """
        if self._resend:  # frames that the receiver lacks, first and with their old numbers
            frame = self._resend.popleft()
            self.has_more = True
            return frame.to_out_frame()
        # Messages that arrive until an acknowledgement share one large frame; see docs/design/credit.md.
        if len(self._in_flight) >= MAX_QUICK_FRAMES_IN_FLIGHT and self._waits_for_ack:
            return None
        entries: list[PendingEntry] = []
        free_bytes = self._max_frame_bytes
        while self._ready and free_bytes > 0:
            flow_id = next(iter(self._ready))
            flow = self._flows[flow_id]
            written, written_bytes = flow.written, flow.written_bytes
            free_bytes = flow.move_to_frame(entries, free_bytes)
            self._written += flow.written - written
            self._written_bytes += flow.written_bytes - written_bytes
            if flow_id < 0 and flow.waiting:
                continue  # the frame is full, and the next frame continues with this flow
            del self._ready[flow_id]
            if not flow.waiting:
                self.blocked_flows.pop(flow_id, None)
            elif flow.has_credit:
                # The frame is full. The flow moves behind the others, so that tasks take turns.
                self._ready[flow_id] = None
            else:
                self.blocked_flows[flow_id] = None
        # A frame without messages can still report closed flows.
        if not entries and not self._flows_to_close:
            return None
        ack_requested = self._ack_requests.ack_wanted(now, urgent=urgent or self._is_short_of_space(entries))
        flows_to_close = self._take_flows_to_close() if self._flows_to_close else ()
        frame = InFlightFrame(self._next_sequence, entries, flows_to_close, ack_requested)
        self._next_sequence += 1
        self._in_flight.append(frame)
        self.has_more = bool(self._ready)
        return frame.to_out_frame()

    @property
    def _waits_for_ack(self) -> bool:
        return sum(each.ack_requested for each in self._in_flight) >= _MAX_ACK_REQUESTS

    def close_unused(self) -> list[int]:
        """Remove the flows that were not used since the last call and have no unreleased messages.

        The next frame notifies the receiver, which also removes them and stops watching releases of their
        tasks. Returns these tasks, without the tasks of forwarded messages. Call this periodically.
        """
        tasks: list[int] = []
        for flow_id, flow in list(self._flows.items()):
            if flow.recently_used or flow.waiting or not flow.all_released:
                flow.recently_used = False
                continue
            del self._flows[flow_id]
            self._ready.pop(flow_id, None)
            self.blocked_flows.pop(flow_id, None)
            # The receiver has no record of other flows, and refuses to close an unknown one.
            if flow.sent_messages:
                self._flows_to_close[flow_id] = None
                self._reduced_credit.pop(flow_id, None)
            task, flow_path = split_flow(flow_id)
            self._flows_by_task[task].remove(flow)
            if not self._flows_by_task[task]:
                del self._flows_by_task[task]
            if not flow_path:
                tasks.append(task)
        return tasks

    def _take_flows_to_close(self) -> Sequence[int]:
        flows_to_close, self._flows_to_close = tuple(self._flows_to_close), {}
        for flow_id in flows_to_close:
            if flow_id in self._flows:  # used again since it was removed
                self._flows[flow_id].first_frame = self._next_sequence
            else:
                self._closed_in_frame[flow_id] = self._next_sequence
        return flows_to_close

    # --- updates from the receiver ------------------------------------------------------------

    def apply_ack(self, ack: Ack) -> None:
        """Apply an acknowledgement; has_gap_before() must be False for it. A repeated one has no effect.

        1. A refused message is dropped.
        2. A message that is retained until it is processed is settled later, by a grant.
        3. Any other message is settled now. If it has an inbound session, a later grant reports its release.

        Raises ProtocolError if it acknowledges a frame that was never sent.
        """
        if ack.sequence >= self._next_sequence:
            last = self._next_sequence - 1
            raise ProtocolError(f"frame {ack.sequence} was acknowledged; last sent: {last}")
        # 1. This is done first, because steps 2 and 3 treat the rest of a frame as accepted.
        if ack.refusals:
            self._apply_refusals(ack.refusals)
        while self._in_flight and self._in_flight[0].sequence <= ack.sequence:
            for entry in self._in_flight.popleft().entries:
                flow = self._flows[entry.group.flow_id]
                # 2. The receiver may still fail before the message is processed.
                if entry.retain:
                    flow.unreleased.append(entry)
                    continue
                self._settle(entry, None)  # 3.
                if entry.inbound is not None:
                    flow.unreleased.append(self.settled[-1])
        self.acked_frame = max(self.acked_frame, ack.sequence)
        if self._closed_in_frame:
            self._closed_in_frame = {
                flow_id: frame for flow_id, frame in self._closed_in_frame.items() if frame > self.acked_frame
            }
        # A welcome with too many refusals acknowledges fewer frames than arrived; this update has the rest.
        while self._resend and self._resend[0].sequence <= ack.sequence:
            self._resend.popleft()
        for grant in ack.credits:
            self._apply_grant(grant, ack.sequence)

    def has_gap_before(self, ack: Ack) -> bool:
        """Return True if an earlier acknowledgement was lost, which may have contained refusals."""
        return ack.previous_sequence > self.acked_frame

    @property
    def at_frame_limit(self) -> bool:
        """True if messages wait because the limit of unacknowledged frames is reached."""
        at_limit = len(self._in_flight) >= MAX_QUICK_FRAMES_IN_FLIGHT
        return at_limit and bool(self._ready) and self._waits_for_ack

    def _apply_grant(self, grant: TaskCredit, sequence: int) -> None:
        flow_id = _flow_id_of(grant)
        flow = self._flows.get(flow_id)
        if flow is None:
            # The first grant of a task with a smaller share can change before its first message is sent.
            if flow_id in self._reduced_credit:
                self._reduced_credit[flow_id] = grant.messages, grant.bytes
            return
        if sequence < flow.first_frame or flow_id in self._flows_to_close:
            return  # a grant for the closed flow with this id
        flow.granted_messages = max(flow.granted_messages, grant.messages)
        flow.granted_bytes = max(flow.granted_bytes, grant.bytes)
        flow.released_messages = max(flow.released_messages, grant.released_messages)
        if flow.waiting:
            self._ready[flow_id] = None
            if flow.has_credit:
                self.blocked_flows.pop(flow_id, None)
        released_messages = grant.released_messages
        while flow.unreleased and flow.removed_count + flow.unreleased[0].messages <= released_messages:
            done = flow.unreleased.popleft()
            flow.removed_count += done.messages
            if isinstance(done, PendingEntry):  # 2. in apply_ack()
                self._settle(done, None)
            else:  # 3. in apply_ack()
                self._released.append(done)

    def _apply_refusals(self, refusals: Iterable[Refusal]) -> None:
        by_frame: dict[int, dict[int, DropReason]] = {}
        for refusal in refusals:
            unknown = refusal.code == ERROR_CODE_UNKNOWN_TASK
            reason = DropReason.UNKNOWN_TASK if unknown else DropReason.REFUSED
            by_frame.setdefault(refusal.frame_sequence, {}).setdefault(_flow_id_of(refusal), reason)
        first = self._in_flight[0].sequence if self._in_flight else 0
        for sequence, reasons in by_frame.items():
            # After a probe, refusals are repeated. An earlier update settled this frame.
            if not first <= sequence < first + len(self._in_flight):
                continue
            frame = self._in_flight[sequence - first]  # frames are numbered without gaps
            kept = []
            for entry in frame.entries:
                if (drop_reason := reasons.get(entry.group.flow_id)) is None:
                    kept.append(entry)
                else:
                    self._settle(entry, drop_reason)
                    group, flow = entry.group, self._flows[entry.group.flow_id]
                    flow.sent_messages -= group.count  # neither side counts refused messages
                    flow.sent_bytes -= group.size_bytes
                    if flow.waiting and flow.has_credit:
                        self._ready[group.flow_id] = None
                        self.blocked_flows.pop(group.flow_id, None)
            frame.entries = kept


def _flow_id_of(counted: TaskCredit | Refusal) -> int:
    return flow_id_of(counted.task, counted.flow_path)
