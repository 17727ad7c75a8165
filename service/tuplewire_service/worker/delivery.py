"""One task's receive queue: a log with cursors for delivered and acknowledged messages.

Every message gets a sequence within the task, from 1. A consumer that reconnects continues at its cursor. If
it does not reconnect, its unacknowledged messages are delivered to the next consumer, in order. Used by
ReceiveQueues for each local task. Owns the unacknowledged messages of the task and their inbound sessions.
No I/O. Call only from the event loop. Source: Storm's receive queue (there a Disruptor ring without
acknowledgement); Kafka's consumer offsets. Design: docs/design/credit.md.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, groupby
from operator import attrgetter
from typing import Any

from tuplewire.session.consume import Delivery
from tuplewire.session.ledger import SettledMessages
from tuplewire.session.pieces import count_within, max_piece_messages, split_head, wire_bytes
from tuplewire.values.group import MAX_FRAME_GROUPS, SIZE_BYTES, TaskGroup
from tuplewire_service.worker.entry_queue import EntryQueue, QueueEntry


@dataclass(frozen=True, slots=True)
class AckedGroup:
    """Messages that their consumer has acknowledged, and the inbound session passed to append()."""

    inbound: Any
    messages: int
    size_bytes: int
    accepted_micros: int = 0
    """See TaskGroup."""
    rejected: bool = False
    """True if the consumer rejected the messages. Their outcome is counted elsewhere."""


_INBOUND, _MESSAGES = attrgetter("inbound"), attrgetter("messages")


def release(task: int, groups: Iterable[AckedGroup | SettledMessages]) -> None:
    """Release messages of a task to their senders: consecutive ones of one sender in one step."""
    for inbound, some in groupby(groups, _INBOUND):
        run = list(some)
        inbound.release(task, sum(map(_MESSAGES, run)), sum(map(SIZE_BYTES, run)))


@dataclass(slots=True, eq=False)
class DeliveryLog:
    """The queue of one task. Sequences count messages, from 1; 0 means "none"."""

    tail: int = 0
    """The sequence of the last message that was appended."""
    last_taken: int = 0
    """The sequence of the last message that take() returned."""
    acknowledged: int = 0
    """The sequence of the last message that the consumer has acknowledged."""
    queued_bytes: int = 0
    """Bytes of all unacknowledged messages, with keys and headers."""
    unretained_messages: int = 0
    """Unacknowledged messages that no upstream process retains (see TaskGroup.retained_upstream)."""
    _waiting: EntryQueue = field(default_factory=EntryQueue)
    _delivered: EntryQueue = field(default_factory=EntryQueue)
    _unreported: deque[tuple[int, int]] = field(default_factory=deque)
    """The last sequence and the size of each delivery that the consumer has not reported as received."""
    _in_flight_bytes: int = 0
    """Bytes of these deliveries, with keys and headers."""

    @property
    def queued_messages(self) -> int:
        """The number of unacknowledged messages, delivered or not."""
        return self.tail - self.acknowledged

    def oldest_age(self, now_micros: int) -> float:
        """Return the age of the oldest unacknowledged message in seconds; 0 if the queue is empty.

        `now_micros` is in microseconds since 1970. The age is 0 if the message has no time of acceptance, or
        if that time is in the future (see TaskGroup for the clock).
        """
        entries = self._delivered or self._waiting
        accepted = entries.first.group.accepted_micros if entries else 0
        return max(0.0, (now_micros - accepted) / 1e6) if accepted else 0.0

    def append(self, group: TaskGroup, inbound: Any = None) -> None:
        """Add messages at the tail. apply_progress() returns the inbound session after acknowledgement."""
        self._waiting.append(QueueEntry(self.tail + 1, group, inbound))
        self.tail += group.count
        self.queued_bytes += group.size_bytes
        if not group.retained_upstream:
            self.unretained_messages += group.count

    def take(
        self,
        credit: int,
        credit_bytes: int,
        max_bytes: int,
        may_repeat: Callable[[TaskGroup, Any], bool] | None = None,
        limit: int = MAX_FRAME_GROUPS,
    ) -> list[Delivery]:
        """Return messages for the consumer and advance the delivery cursor.

        Args:
            credit: The last sequence that may be delivered.
            credit_bytes: Messages are added while fewer bytes are delivered and not reported as received.
            max_bytes: The same limit for this call, including the columns of lengths. The resulting frame
                has less than twice this size, plus one message.
            may_repeat: Returns True if a group of its inbound session may have been delivered before on
                another path. The group is then marked as redelivered.
            limit: The maximum number of groups.
        """
        deliveries: list[Delivery] = []
        free_bytes = credit_bytes - self._in_flight_bytes
        frame_space = max_bytes
        last = min(credit, self.tail)
        while self.last_taken < last and free_bytes > 0 and frame_space > 0 and len(deliveries) < limit:
            entry = self._waiting.popleft()
            group = entry.group
            wire_size = wire_bytes(group)
            # Deliver a part of a group rather than exceed the consumer's credit or the size of a frame.
            if group.count > last - self.last_taken or wire_size > min(free_bytes, frame_space):
                count = min(
                    count_within(group, min(free_bytes, frame_space)),
                    last - self.last_taken,
                    max_piece_messages(group, frame_space),
                )
                entry = _split_entry(self._waiting, entry, count)
                wire_size = wire_bytes(entry.group)
            if may_repeat is not None and may_repeat(entry.group, entry.inbound):
                entry.group = entry.group.as_redelivered()
            self._delivered.append(entry)
            self.last_taken += entry.group.count
            size = entry.group.size_bytes
            free_bytes -= size
            frame_space -= wire_size
            self._in_flight_bytes += size
            self._unreported.append((self.last_taken, size))
            deliveries.append(Delivery(entry.first_sequence, entry.group))
        return deliveries

    def read(self, after: int, last: int, max_bytes: int) -> list[Delivery]:
        """Return unacknowledged messages after `after`, up to `last`, without moving a cursor; see take()."""
        found: list[Delivery] = []
        for entry in chain(self._delivered.after(after), self._waiting.after(after)):
            delivery = Delivery(entry.first_sequence, entry.group).clip(after, last)
            if delivery is None:
                if entry.first_sequence > last:
                    break
                continue
            group = delivery.group
            count = min(count_within(group, max_bytes), max_piece_messages(group, max_bytes))
            if count < group.count:
                found.append(Delivery(delivery.first_sequence, group.slice(0, count)))
                break
            found.append(delivery)
            max_bytes -= wire_bytes(group)
            if max_bytes <= 0 or len(found) == MAX_FRAME_GROUPS:
                break
        return found

    def apply_progress(self, acknowledged: int, received: int, limit: int = sys.maxsize) -> list[AckedGroup]:
        """Advance the cursors to the consumer's sequences; return the newly acknowledged messages.

        Sequences beyond the delivered messages are reduced to the last delivered one. At most `limit` groups
        are acknowledged; repeat the call for the rest. A repeated call is otherwise without effect.
        """
        while self._unreported and self._unreported[0][0] <= received:
            self._in_flight_bytes -= self._unreported.popleft()[1]
        # A consumer cannot acknowledge messages that were not delivered to it.
        acknowledged = min(acknowledged, self.last_taken)
        done: list[AckedGroup] = []
        settled_sequence = self.acknowledged  # the delivered entries start after this sequence
        while settled_sequence < acknowledged:
            if len(done) >= limit:  # the next call continues here
                acknowledged = settled_sequence
                break
            entry = self._delivered.popleft()
            if settled_sequence + entry.group.count > acknowledged:
                entry = _split_entry(self._delivered, entry, acknowledged - settled_sequence)
            settled_sequence += entry.group.count
            size = entry.group.size_bytes
            done.append(AckedGroup(entry.inbound, entry.group.count, size, entry.group.accepted_micros))
            self.queued_bytes -= size
            if not entry.group.retained_upstream:
                self.unretained_messages -= entry.group.count
        self.acknowledged = max(self.acknowledged, acknowledged)
        return done

    def rewind(self, received: int | None = None) -> None:
        """Move the delivery cursor back.

        1. A reconnecting consumer continues after `received`, the last sequence that it has.
        2. A new consumer (`received` is None) starts after the last acknowledged message. Messages that were
           delivered before are marked as redelivered.
        """
        # 1. The messages up to this position stay delivered, because the consumer can acknowledge them.
        position = max(self.acknowledged, min(received or 0, self.last_taken))
        # 2. The previous consumer may have processed messages without acknowledging them.
        self._delivered.move_after(position, self._waiting, redelivered=received is None)
        self.last_taken = position
        # Deliveries to the previous stream no longer count as in flight.
        self._unreported.clear()
        self._in_flight_bytes = 0

    def split_oldest(self) -> tuple[TaskGroup, Any] | None:
        """Return the first unacknowledged message and its inbound session, if it was delivered."""
        if not self._delivered:
            return None
        # Split off a single message, so that replace_oldest() affects no other message of its group.
        entry = _split_entry(self._delivered, self._delivered.popleft(), 1)
        self._delivered.appendleft(entry)
        return entry.group, entry.inbound

    def replace_oldest(self, group: TaskGroup, inbound: Any) -> None:
        """Replace the message of split_oldest() and its inbound session; then call rewind()."""
        entry = self._delivered.first
        self.queued_bytes += group.size_bytes - entry.group.size_bytes
        entry.group, entry.inbound = group, inbound

    def iter_entries(self) -> Iterator[QueueEntry]:
        """Return an iterator over the unacknowledged messages, in order. Any thread may use the iterator."""
        return chain(iter(self._delivered), iter(self._waiting))

    def remove_all(self) -> list[tuple[TaskGroup, Any]]:
        """Remove and return the unacknowledged messages, in order, each with its inbound session."""
        self.rewind()  # marks delivered messages as redelivered: the consumer may have processed them
        removed = [(entry.group, entry.inbound) for entry in self._waiting]
        self._waiting = EntryQueue()
        self.acknowledged = self.last_taken = self.tail
        self.queued_bytes = self.unretained_messages = 0
        return removed


def _split_entry(entries: EntryQueue, entry: QueueEntry, count: int) -> QueueEntry:
    """Return the first `count` messages of a removed entry, and return the others to the queue's front."""
    if count >= entry.group.count:
        return entry
    stop = entry.first_sequence + entry.group.count
    head, *rest = split_head(entry.group, count)
    for piece in reversed(rest):
        stop -= piece.count
        entries.appendleft(QueueEntry(stop, piece, entry.inbound))
    return QueueEntry(entry.first_sequence, head, entry.inbound)
