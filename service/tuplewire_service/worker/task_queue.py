"""The receive queue of one task, and its state for readers.

Used by receive_queues.py, queue_subscription.py and rejections.py. Owns the log, the consumer and the readers
of a task. Call only from the event loop, except TaskSnapshot.entries().
Design: docs/design/credit.md (queues) and docs/design/readers.md.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from tuplewire.errors import RefusedError
from tuplewire.session.durations import Durations
from tuplewire.wire import control_pb2 as pb
from tuplewire_service.worker.delivery import DeliveryLog
from tuplewire_service.worker.entry_queue import QueueEntry
from tuplewire_service.worker.moves import entry_worker_of

_TIMESTAMP_SECONDS = 0.001
"""Messages that arrive within this time share one time stamp, which saves memory for single messages."""


class Consumer(Protocol):
    """The subscription of a consumer, as its queues use it."""

    def mark_ready(self, queue: TaskQueue) -> None:
        """Note that a queue has new messages."""

    def remove_queue(self, queue: TaskQueue) -> None:
        """Remove the queue of a task that has moved; the last one ends the subscription."""

    def end(self, error: RefusedError) -> None:
        """End the subscription with an error; its queues wait for the next consumer."""

    def status(self, now: float) -> pb.ConsumerStatus:
        """Return the consumer and its tasks. `now` is a time of the monotonic clock."""


@dataclass(slots=True, eq=False)
class QueueTimes:
    """The waiting times of a queue's messages, which are numbered without gaps and leave in order."""

    _last_removed: int = 0
    _arrivals: deque[tuple[int, float]] = field(default_factory=deque)

    def record_arrival(self, last: int, now: float) -> None:
        """Record the arrival of the messages up to the number `last`."""
        arrivals = self._arrivals
        if arrivals and now - arrivals[-1][1] < _TIMESTAMP_SECONDS:
            arrivals[-1] = (last, arrivals[-1][1])
        else:
            arrivals.append((last, now))

    def record_removal(self, last: int, now: float, histogram: Durations) -> None:
        """Record that the messages up to the number `last` have left. Each message counts once."""
        arrivals = self._arrivals
        while self._last_removed < last and arrivals:
            last_number, since = arrivals[0]
            if last_number <= last:
                arrivals.popleft()
            else:  # a part of the messages with this time has left
                last_number = last
            histogram.add(now - since, last_number - self._last_removed)
            self._last_removed = last_number


@dataclass(slots=True, eq=False)
class TaskQueue:
    """The receive queue of one task, and its consumer."""

    task: int
    log: DeliveryLog
    times: QueueTimes
    base_sequence: int
    is_leaving: bool = False
    consumer: Consumer | None = None
    consumer_key: tuple[str, str] = ("", "")
    consumer_incarnation: int = 0
    subscription_id: int = 0
    """The consumer's `Subscribe.subscription_id`, which differs between subscriptions of one consumer."""
    credit: int = 0
    credit_bytes: int = 0
    last_rejection: int = 0
    """The number of its consumer's last rejection."""
    blocked_until: float = 0.0
    """Monotonic time before which nothing is delivered; 0 if no rejected message blocks the queue."""
    reader_events: set[asyncio.Event] = field(default_factory=set)
    """Events that are set when a waiting reader should check the queue; see ReceiveQueues."""

    def wake_readers(self) -> None:
        """Notify waiting readers that messages were added, or that the task moves."""
        for each in self.reader_events:
            each.set()


class TaskSnapshot(NamedTuple):
    """The state of a task for readers, and its unacknowledged messages."""

    state: pb.HeldTask
    queue_entries: Iterable[QueueEntry]

    def entries(self, last: int, own_number: int) -> pb.TaskEntries:
        """Return the entry sequences of the messages up to `last`; 0: of all messages.

        The sequences stay with a message when its task moves. `own_number` is the number of this worker as an
        entry worker. A million groups take about half a second.
        """
        run_lengths: list[int] = []
        workers: list[int] = []
        sequences: list[int] = []
        worker = next_sequence = 0
        for each in self.queue_entries:
            sequence, group = each.first_sequence, each.group
            count = group.count
            # Only a part of a group may be up to `last`.
            if last and sequence + count - 1 > last:
                count = last - sequence + 1
                if count <= 0:
                    break
            entered = entry_worker_of(group, each.inbound, own_number)
            # Consecutive groups of an entry worker share a run: a queue may have a million groups.
            if entered == worker and group.entry_sequence == next_sequence:
                run_lengths[-1] += count
            else:
                run_lengths.append(count)
                workers.append(entered)
                sequences.append(group.entry_sequence)
                worker = entered
            next_sequence = group.entry_sequence + count
        return pb.TaskEntries(
            first_sequence=self.state.acknowledged_sequence + 1,
            run_lengths=run_lengths,
            entry_workers=workers,
            entry_sequences=sequences,
        )
