"""A task's receive queue, and a consumer's hold on some of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tuplewire.errors import RefusedError
from tuplewire.session.consume import Cursor
from tuplewire.session.delivery import Delivery, DeliveryLog
from tuplewire.session.durations import QueueTimes
from tuplewire.session.pieces import wire_bytes
from tuplewire.session.rejection import Answer
from tuplewire.values.group import MAX_FRAME_GROUPS
from tuplewire_service.messaging.subscription import ISubscription, SubscribeRequest
from tuplewire_service.worker.worker_snapshot import ConsumerSnapshot

if TYPE_CHECKING:
    from tuplewire_service.worker.receive_queues import ReceiveQueues

_CROWDED = 0.25
"""A queue that is so full waits for its consumer, or some sender soon will."""


@dataclass(slots=True, eq=False)
class Queue:
    """The receive queue of one task, and who consumes from it."""

    task: int
    log: DeliveryLog
    times: QueueTimes
    begin: int
    leaving: bool = False
    consumer: QueueSubscription | None = None
    consumer_key: tuple[str, str] = ("", "")
    incarnation: int = 0
    subscription: int = 0
    credit: int = 0
    credit_bytes: int = 0
    rejected: int = 0
    """The number of its consumer's last rejection."""
    held_until: float = 0.0
    """Nothing is handed out before this time, by the monotonic clock; 0: nothing has kept its place."""
    readers: set[asyncio.Event] = field(default_factory=set)
    """Set when something changes for a reader that waits; see QueueReaders."""

    def wake_readers(self) -> None:
        """Tell those who wait that messages have come, or that the task moves."""
        for each in self.readers:
            each.set()


class QueueSubscription(ISubscription):
    """A consumer's hold on some queues."""

    def __init__(self, queues: ReceiveQueues, wake: Callable[[], None], request: SubscribeRequest) -> None:
        """Hold none yet."""
        self.worker_id = queues.worker_id
        self.worker_incarnation = queues.incarnation
        self._queues = queues
        self._wake = wake
        self._request = request
        self._since = time.monotonic()
        self._held: dict[int, Queue] = {}
        self._ready: dict[int, None] = {}
        self._answers: dict[int, Answer] = {}
        self._unsettled: list[Cursor] = []
        """Reports of its consumer that were too much for one turn."""

    def add(self, queue: Queue, unsettled: Cursor | None) -> None:
        """Hold a queue. unsettled: a report of its consumer that progress() has to finish."""
        self._held[queue.task] = queue
        if unsettled is not None:
            self._unsettled.append(unsettled)
        self._ready[queue.task] = None

    def mark(self, queue: Queue) -> None:
        """Note that a queue has new messages."""
        self._ready[queue.task] = None
        self._wake()

    def end(self, error: RefusedError) -> None:
        """End the subscription, as seen by its consumer; its queues wait for the next."""
        self.close()
        self.ended = error
        self._wake()

    def snapshot(self, now: float) -> ConsumerSnapshot:
        """Return who holds what. now: by the monotonic clock."""
        request, held = self._request, self._held.values()
        return ConsumerSnapshot(
            request.consumer_id,
            request.owner,
            request.address,
            now - self._since,
            tuple(sorted(self._held)),
            sum(queue.log.taken - queue.log.acknowledged for queue in held),
        )

    @property
    def starts(self) -> Sequence[tuple[int, int]]:
        return [(task, queue.log.taken) for task, queue in self._held.items()]

    @property
    def waiting(self) -> bool:
        return any(queue.log.queued_messages for queue in self._held.values())

    def take(self, max_bytes: int) -> list[Delivery]:
        """See ISubscription. Takes turns between the tasks."""
        deliveries: list[Delivery] = []
        self.crowded = False
        while self._ready and max_bytes > 0 and len(deliveries) < MAX_FRAME_GROUPS:
            task = next(iter(self._ready))
            del self._ready[task]
            queue = self._held[task]
            if queue.leaving or self._queues.holds(queue):
                continue  # its task is gone, or waits
            most = MAX_FRAME_GROUPS - len(deliveries)
            taken = queue.log.take(queue.credit, queue.credit_bytes, max_bytes, self._queues.doubtful, most)
            max_bytes -= sum(wire_bytes(delivery.group) for delivery in taken)
            if not taken:
                continue
            self._queues.taken(queue, taken)
            deliveries += taken
            self.crowded |= self._queues.load(task) >= _CROWDED
            if queue.log.waiting:
                self._ready[task] = None
        return deliveries

    def progress(self, cursors: Sequence[Cursor]) -> bool:
        unsettled, self._unsettled = self._unsettled, []
        for cursor in (*unsettled, *cursors):
            queue = self._held.get(cursor.task)
            if queue is not None:
                if self._queues.progress(queue, cursor):
                    self._unsettled.append(cursor)
                elif cursor.rejections:
                    answer = Answer(cursor.task, queue.rejected, queue.log.taken)
                    self._answers[cursor.task] = answer
                    self._wake()
                if queue.log.waiting:
                    self._ready[cursor.task] = None
        if self._ready:
            self._wake()
        return bool(self._unsettled)

    def take_answers(self) -> list[Answer]:
        if not self._answers:
            return []
        answers, self._answers = self._answers, {}
        return list(answers.values())

    def drop(self, queue: Queue) -> None:
        """Let go of a queue whose task has moved; the last one ends the subscription."""
        queue.consumer = None
        del self._held[queue.task]
        self._ready.pop(queue.task, None)
        if not self._held:
            self.end(self._queues.not_here(queue.task))

    def close(self) -> None:
        held, self._held = self._held, {}
        self._ready.clear()
        for queue in held.values():
            if queue.consumer is self:
                queue.consumer = None
                if queue.leaving:
                    self._queues.on_done(queue.task, ())
