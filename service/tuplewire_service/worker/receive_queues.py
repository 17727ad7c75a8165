"""The receive queues of a worker's local tasks. Source: Storm's `receive-queue-map`."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from operator import attrgetter

from tuplewire.errors import RefusedError
from tuplewire.observer import Observer
from tuplewire.session.delivery import Delivery, DeliveryLog, Done
from tuplewire.session.durations import Durations, QueueTimes
from tuplewire.values.group import TaskGroup
from tuplewire.wire import control_pb2 as pb
from tuplewire_service.messaging.base import InboundSession
from tuplewire_service.worker.entries import HeldOfTask
from tuplewire_service.worker.queue import Queue
from tuplewire_service.worker.worker_settings import WorkerSettings

_RANKED_AT_ONCE = 1000
"""Tasks in one turn of the loop: a fraction of a millisecond."""
_MOST_TAILS = 10_000
"""Of so many tasks that are gone the last sequence is remembered; others begin after all those forgotten."""


class ReceiveQueues:
    """All queues of a worker. Belongs to the event loop; bounded by the senders' credit."""

    def __init__(
        self,
        settings: WorkerSettings,
        on_done: Callable[[int, Sequence[Done]], None],
        not_here: Callable[[int], RefusedError],
        observer: Observer | None = None,
    ) -> None:
        """Start empty.

        on_done: called with a task and its acknowledged messages; without messages, if a consumer has left a
        task that moves away.
        not_here: returns the error for a task that is not local.
        """
        self._settings = settings
        self.on_done = on_done
        self.observer = observer
        self.not_here = not_here
        self._queues: dict[int, Queue] = {}
        self._leaving: dict[int, Queue] = {}
        self._touched: set[int] = set()
        self._tails: dict[int, int] = {}
        self._start = 0
        self._early: set[int] = set()
        self.wait = Durations()
        """How long messages waited until a consumer first got them."""
        self.redelivered_messages = 0
        """How many messages were handed out as perhaps delivered before."""

    def __contains__(self, task: int) -> bool:
        return task in self._queues

    def __len__(self) -> int:
        return len(self._queues)

    def get(self, task: int) -> Queue | None:
        """Return the queue of a local task."""
        return self._queues.get(task)

    def __iter__(self) -> Iterator[int]:
        return iter(self._queues)

    def assign(self, tasks: Iterable[int]) -> list[int]:
        """Hold these tasks and no others; return the tasks that are gone, whose rest leave() returns.

        If a task comes back, its sequences continue, or go on after a gap if that was long ago.
        """
        wanted = set(tasks)
        self._early.clear()
        for task in wanted - self._queues.keys():
            self._hold(task)
        gone = list(self._queues.keys() - wanted)
        for task in gone:
            queue = self._leaving[task] = self._queues.pop(task)
            queue.leaving = True
            queue.wake_readers()
        return gone

    def _hold(self, task: int) -> None:
        queue = self._leaving.pop(task, None)
        if queue is None:
            start = self._tails.pop(task, self._start)
            queue = Queue(task, DeliveryLog.after(start), QueueTimes(start), start)
        self._queues[task] = queue
        self._touched.add(task)
        queue.leaving = False
        if queue.consumer is not None:
            queue.consumer.mark(queue)

    def leave(self, tasks: Iterable[int]) -> list[tuple[TaskGroup, InboundSession]]:
        """Take out, in order, the messages of those tasks that are gone and whose consumers have finished.

        Nothing more is delivered for such a task, so another consumer continues where this one ends.
        """
        left: list[tuple[TaskGroup, InboundSession]] = []
        for task in tasks:
            queue = self._leaving.get(task)
            if queue is None:
                continue
            if queue.consumer is not None:
                if queue.log.taken > queue.log.acknowledged:
                    continue
                queue.consumer.drop(queue)
            left += queue.log.remove()
            del self._leaving[task]
            if self.observer is not None:
                self.observer.left(task)
            self._remember_tail(task, queue.log.tail)
        return left

    def _remember_tail(self, task: int, tail: int) -> None:
        if tail <= self._start:
            return
        self._tails[task] = tail
        if len(self._tails) > _MOST_TAILS:
            self._start = max(self._start, self._tails.pop(next(iter(self._tails))))

    def left(self, task: int) -> bool:
        """Whether the queue of a task that was ours is empty."""
        return task not in self._early and task not in self._leaving

    def is_leaving(self, task: int) -> bool:
        """Whether a task is gone, and its messages are still here."""
        return task in self._leaving

    def open(self, task: int) -> bool:
        """Hold a task that is ours by an assignment still on its way; return False if we hold it already."""
        if task in self._queues:
            return False
        self._early.add(task)
        self._hold(task)
        return True

    def held(self, task: int) -> HeldOfTask | None:
        """Return what is held of a local task now; None if it is not here."""
        queue = self._queues.get(task)
        if queue is None:
            return None
        log, consumer = queue.log, queue.consumer_key[1] if queue.consumer is not None else ""
        state = pb.HeldTask(
            task=task,
            acknowledged_sequence=log.acknowledged,
            last_sequence=log.tail,
            bytes=log.queued_bytes,
            begin_sequence=queue.begin,
            consumer=consumer,
        )
        return HeldOfTask(state, log.held())

    def waiting(self) -> dict[int, int]:
        """Return how many messages each task has here, where there are any; also of those that leave."""
        queues = (*self._queues.values(), *self._leaving.values())
        found: dict[int, int] = {}
        for queue in queues:
            if count := queue.log.queued_messages:
                found[queue.task] = found.get(queue.task, 0) + count
        return found

    def put(self, group: TaskGroup, inbound: InboundSession) -> None:
        """Queue messages for a local task, or for one that moves away."""
        queue = self._queues.get(group.task) or self._leaving[group.task]
        queue.log.append(group, inbound)
        if self.observer is not None:
            self.observer.queued(group, queue.log)
        self._touched.add(group.task)
        queue.times.came(queue.log.tail, time.monotonic())
        queue.wake_readers()
        if queue.consumer is not None:
            queue.consumer.mark(queue)

    def load(self, task: int) -> float:
        """Return how full a local task's queue is, from 0 to 1."""
        log, settings = self._queues[task].log, self._settings
        messages = log.queued_messages / settings.receive_queue_messages
        return min(1.0, max(messages, log.queued_bytes / settings.receive_queue_bytes))

    def changed_loads(self) -> dict[int, float]:
        """Return the loads above 0, and those that have come down to 0 since the last call."""
        loads = {task: self.load(task) for task in self._touched if task in self._queues}
        self._touched = {task for task, load in loads.items() if load}  # only what has messages can change
        return loads

    @property
    def pending_messages(self) -> int:
        """Messages that wait, or are not acknowledged, in all queues."""
        return sum(queue.log.queued_messages for queue in self._with_messages())

    @property
    def unkept_messages(self) -> int:
        """Those of the same that nobody else keeps."""
        return sum(queue.log.unkept for queue in self._with_messages())

    def _with_messages(self) -> Iterator[Queue]:
        """Yield all queues that have messages, and perhaps others: few, where most of 10,000 tasks rest."""
        yield from (self._queues[task] for task in self._touched if task in self._queues)
        yield from self._leaving.values()

    async def shown(self, urgent: Collection[int], most: int) -> Sequence[int]:
        """Return the tasks that matter most, at most so many, by number.

        These are the urgent ones, then those with most unacknowledged messages, then those that got most.
        """
        ranks: list[tuple[bool, int, int, int]] = []
        for number, (task, queue) in enumerate(list(self._queues.items())):
            if number % _RANKED_AT_ONCE == 0:
                await asyncio.sleep(0)
            log = queue.log
            ranks.append((task in urgent, log.tail - log.acknowledged, log.tail, -task))
        return sorted(-rank[-1] for rank in heapq.nlargest(most, ranks))

    def add_to(
        self, status: pb.GetStatusResponse, tasks: Iterable[int] | None, congested: Container[int]
    ) -> None:
        """Add the queues to a worker's status: of those tasks that are here; None: of all."""
        wanted = sorted(self._queues) if tasks is None else (each for each in tasks if each in self._queues)
        now_micros = time.time_ns() // 1000
        for task in wanted:
            queue, told = self._queues[task], status.tasks.add()
            log, begin = queue.log, queue.begin
            told.task = task
            told.subscribed = queue.consumer is not None
            told.acknowledged_messages = log.acknowledged - begin
            told.received_messages = log.tail - begin
            told.begin_sequence = begin
            told.congested = task in congested
            if log.queued_messages:  # most of 10,000 tasks rest
                told.queued_messages = log.queued_messages
                told.queued_bytes = log.queued_bytes
                told.oldest_seconds = log.age(now_micros)
                told.load = self.load(task)

    def consumers(self) -> list[pb.ConsumerStatus]:
        """Return every consumer that holds a task, those first that have the most that is unacknowledged."""
        now = time.monotonic()
        held = {id(queue.consumer): queue.consumer for queue in self._queues.values()}
        found = [each.status(now) for each in held.values() if each is not None]
        return sorted(found, key=attrgetter("outstanding_messages"), reverse=True)

    def end_consumers(self, error: RefusedError) -> None:
        """End every subscription."""
        for queue in (*self._queues.values(), *self._leaving.values()):
            if queue.consumer is not None:
                queue.consumer.end(error)

    def clear(self) -> int:
        """Drop every message without releasing it to its sender; return how many there were."""
        queues = (*self._queues.values(), *self._leaving.values())
        return sum(len(group) for queue in queues for group, _ in queue.log.remove())

    def reached(self, queue: Queue, last: int) -> None:
        """Account for the first delivery of messages up to a sequence, to a consumer or a reader."""
        queue.times.left(last, time.monotonic(), self.wait)
        if self.observer is not None:
            self.observer.delivered(queue.task, last, self.wait)

    def taken(self, queue: Queue, deliveries: Sequence[Delivery]) -> None:
        """Account for messages that were handed to a queue's consumer."""
        self.reached(queue, queue.log.taken)
        for delivery in deliveries:
            if delivery.group.redelivered:
                self.redelivered_messages += len(delivery.group)
