"""The receive queues of a worker's local tasks. Source: Storm's `receive-queue-map`.

Used by router.py, queue_subscription.py and control/spark_servicers.py. Owns the queues, their sequence
numbers and the queueing times. Call only from the event loop. Design: docs/design/credit.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import sys
import time
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from operator import attrgetter

from tuplewire.errors import RefusedError, SupersededError
from tuplewire.session.consume import Delivery
from tuplewire.session.durations import Durations
from tuplewire.values.group import TaskGroup
from tuplewire.wire import control_pb2 as pb
from tuplewire_service.messaging.base import InboundSession
from tuplewire_service.worker.delivery import AckedGroup, DeliveryLog
from tuplewire_service.worker.task_queue import QueueTimes, TaskQueue, TaskSnapshot
from tuplewire_service.worker.worker_observer import WorkerObserver
from tuplewire_service.worker.worker_settings import WorkerSettings

_RANKED_PER_TURN = 1000
"""Tasks to rank in one turn of the loop: a fraction of a millisecond."""
TURN_GROUPS = 100
"""Maximum number of groups settled in one turn of the loop, so that other sessions are not delayed."""
_MAX_WATCHED_TASKS = 100_000
"""Maximum number of tasks that all readers together may wait for."""
_MAX_LAST_SEQUENCES = 10_000
"""Maximum number of removed tasks with a stored last sequence. Others start after the highest evicted one."""


@dataclass(eq=False, repr=False)
class ReceiveQueues:
    """All queues of a worker. Call only from the event loop. Memory is bounded by the senders' credit."""

    settings: WorkerSettings
    on_acknowledged: Callable[[int, Sequence[AckedGroup]], None]
    """Called with a task and its acknowledged messages; without any if a consumer left a moving task."""
    not_local_error: Callable[[int], RefusedError]
    observer: WorkerObserver | None = None
    queue_wait: Durations = field(default_factory=Durations)
    """Seconds that messages waited for their first delivery to a consumer."""
    redelivered_messages: int = 0
    """Number of messages delivered with the `redelivered` mark."""
    by_task: dict[int, TaskQueue] = field(default_factory=dict)
    """The queues of the local tasks."""
    leaving: dict[int, TaskQueue] = field(default_factory=dict)
    """The queues of removed tasks, while their messages are still here."""
    _active_tasks: set[int] = field(default_factory=set)
    _last_sequences: dict[int, int] = field(default_factory=dict)
    _common_start: int = 0
    _early_tasks: set[int] = field(default_factory=set)
    _watched_count: int = 0

    def set_local_tasks(self, tasks: Iterable[int]) -> list[int]:
        """Own exactly these tasks. Return the removed tasks; take_leaving() returns their remaining messages.

        A task that returns continues its sequences, possibly after a gap.
        """
        wanted = set(tasks)
        # The assignment replaces the earlier guess from a peer's version.
        self._early_tasks.clear()
        for task in wanted - self.by_task.keys():
            self._open_queue(task)
        removed = list(self.by_task.keys() - wanted)
        for task in removed:
            queue = self.leaving[task] = self.by_task.pop(task)
            # Deliveries stop now; the consumer may still acknowledge delivered messages.
            queue.is_leaving = True
            queue.wake_readers()
        return removed

    def _open_queue(self, task: int) -> None:
        # A task may return before its queue was forwarded.
        queue = self.leaving.pop(task, None)
        if queue is None:
            start = self._last_sequences.pop(task, self._common_start)
            queue = TaskQueue(task, DeliveryLog(start, start, start), QueueTimes(start), start)
        self.by_task[task] = queue
        self._active_tasks.add(task)
        queue.is_leaving = False
        if queue.consumer is not None:
            queue.consumer.mark_ready(queue)

    def take_leaving(self, tasks: Iterable[int]) -> list[tuple[TaskGroup, InboundSession]]:
        """Remove and return, in order, the messages of removed tasks that have no unacknowledged deliveries.

        Such a task gets no more deliveries, so its next consumer continues where this one ends.

        1. The task is local, or its queue was removed before: there is nothing to return.
        2. Its consumer has unacknowledged messages: the queue stays until it acknowledges them, or leaves.
        3. Otherwise the consumer loses the task, and the messages are returned.
        """
        groups: list[tuple[TaskGroup, InboundSession]] = []
        for task in tasks:
            # 1. A task may return before its queue could leave; see _open_queue().
            queue = self.leaving.get(task)
            if queue is None:
                continue
            if queue.consumer is not None:
                # 2. Forwarded now, these messages would be delivered to the next consumer again.
                if queue.log.last_taken > queue.log.acknowledged:
                    continue
                queue.consumer.remove_queue(queue)
            # 3. The last consumer may have processed messages: remove_all() marks these as redelivered.
            groups += queue.log.remove_all()
            del self.leaving[task]
            if self.observer is not None:
                self.observer.on_moved(task)
            # The offset of a reader may contain a sequence of this worker, so no sequence is used twice. The
            # common start covers the tasks with lower sequences.
            if queue.log.tail > self._common_start:
                self._last_sequences[task] = queue.log.tail
                if len(self._last_sequences) > _MAX_LAST_SEQUENCES:
                    forgotten = self._last_sequences.pop(next(iter(self._last_sequences)))
                    self._common_start = max(self._common_start, forgotten)
        return groups

    def matches_assignment(self, task: int) -> bool:
        """Return True unless a removed task still has its queue, or a task was opened early."""
        return task not in self._early_tasks and task not in self.leaving

    def open_early(self, task: int) -> bool:
        """Own a task before its assignment arrives; return False if it is already local."""
        if task in self.by_task:
            return False
        self._early_tasks.add(task)
        self._open_queue(task)
        return True

    def snapshot(self, task: int) -> TaskSnapshot | None:
        """Return the current state and messages of a local task, or None."""
        queue = self.by_task.get(task)
        if queue is None:
            return None
        log, consumer = queue.log, queue.consumer_key[1] if queue.consumer is not None else ""
        state = pb.HeldTask(
            task=task,
            acknowledged_sequence=log.acknowledged,
            last_sequence=log.tail,
            queued_bytes=log.queued_bytes,
            base_sequence=queue.base_sequence,
            consumer_id=consumer,
        )
        return TaskSnapshot(state, log.iter_entries())

    def queued_by_task(self) -> dict[int, int]:
        """Return the number of queued messages by task, without empty queues; includes removed tasks."""
        return {queue.task: count for queue in self._all_queues() if (count := queue.log.queued_messages)}

    def _all_queues(self) -> Iterable[TaskQueue]:
        return chain(self.by_task.values(), self.leaving.values())

    def put(self, group: TaskGroup, inbound: InboundSession) -> bool:
        """Queue messages for a local task, or one that moves away; return False for any other task."""
        # Messages for a task that moves follow the queued ones through its queue; see docs/design/moves.md.
        queue = self.by_task.get(group.task) or self.leaving.get(group.task)
        if queue is None:
            return False
        queue.log.append(group, inbound)
        if self.observer is not None:
            self.observer.on_queued(group, queue.log)
        self._active_tasks.add(group.task)
        queue.times.record_arrival(queue.log.tail, time.monotonic())
        if queue.reader_events:
            queue.wake_readers()
        if queue.consumer is not None:
            queue.consumer.mark_ready(queue)
        return True

    def load(self, task: int) -> float:
        """Return the fill level of a local task's queue, from 0 to 1."""
        log, settings = self.by_task[task].log, self.settings
        messages = (log.tail - log.acknowledged) / settings.receive_queue_messages
        return min(1.0, max(messages, log.queued_bytes / settings.receive_queue_bytes))

    def changed_loads(self) -> dict[int, float]:
        """Return the loads above 0, and the loads that fell to 0 since the last call."""
        loads = {task: self.load(task) for task in self._active_tasks if task in self.by_task}
        self._active_tasks = {task for task, load in loads.items() if load}  # empty queues cannot change
        return loads

    @property
    def pending_messages(self) -> int:
        """Number of messages in all queues that are queued or unacknowledged."""
        return sum(queue.log.queued_messages for queue in self._active_queues())

    @property
    def unretained_messages(self) -> int:
        """Number of pending messages that no other process stores."""
        return sum(queue.log.unretained_messages for queue in self._active_queues())

    def _active_queues(self) -> Iterator[TaskQueue]:
        """Yield all queues with messages, and perhaps others; cheap if most of 10,000 tasks are idle."""
        yield from (self.by_task[task] for task in self._active_tasks if task in self.by_task)
        yield from self.leaving.values()

    async def most_relevant(self, urgent: Collection[int], max_tasks: int) -> Sequence[int]:
        """Return the `max_tasks` most relevant tasks, sorted by number.

        Urgent tasks rank first, then tasks with most unacknowledged, then with most received messages.
        """

        def rank(task: int) -> tuple[bool, int, int, int]:
            log = self.by_task[task].log
            return task in urgent, log.tail - log.acknowledged, log.tail, -task

        tasks, best, get = list(self.by_task), list[int](), self.by_task.get
        for start in range(0, len(tasks), _RANKED_PER_TURN):
            await asyncio.sleep(0)  # queues may be removed in the meantime
            found = chain(best, tasks[start : start + _RANKED_PER_TURN])
            # Most of 10,000 tasks have never received a message. A list of all ranks would cause collections
            # of garbage, which visit the objects of all tasks.
            used = (each for each in found if (queue := get(each)) and (queue.log.tail or each in urgent))
            best = heapq.nlargest(max_tasks, used, key=rank)
        ranked = set(best)
        unused = (task for task in self.by_task if task not in ranked)
        return sorted(chain(best, islice(unused, max_tasks - len(best))))

    def add_to(
        self, status: pb.GetStatusResponse, tasks: Iterable[int] | None, congested: Container[int]
    ) -> None:
        """Add the queues of these local tasks to a worker's status; None: all queues."""
        wanted = sorted(self.by_task) if tasks is None else (each for each in tasks if each in self.by_task)
        now_micros = time.time_ns() // 1000
        for task in wanted:
            queue, row = self.by_task[task], status.tasks.add()
            log, base = queue.log, queue.base_sequence
            row.task = task
            row.subscribed = queue.consumer is not None
            row.acknowledged_messages = log.acknowledged - base
            row.received_messages = log.tail - base
            row.base_sequence = base
            row.congested = task in congested
            if log.queued_messages:  # most of 10,000 tasks are idle
                row.queued_messages = log.queued_messages
                row.queued_bytes = log.queued_bytes
                row.oldest_seconds = log.oldest_age(now_micros)
                row.load = self.load(task)

    def consumer_statuses(self) -> list[pb.ConsumerStatus]:
        """Return every consumer that holds a task, by descending number of unacknowledged messages."""
        now = time.monotonic()
        consumers = {id(queue.consumer): queue.consumer for queue in self.by_task.values()}
        found = [each.status(now) for each in consumers.values() if each is not None]
        return sorted(found, key=attrgetter("outstanding_messages"), reverse=True)

    def end_consumers(self, error: RefusedError) -> None:
        """End every subscription."""
        # A copy, because the end of a consumer can remove the queue of a task that moves.
        for queue in list(self._all_queues()):
            if queue.consumer is not None:
                queue.consumer.end(error)

    def clear(self) -> int:
        """Drop every message without releasing it to its sender; return the number of messages."""
        return sum(group.count for queue in self._all_queues() for group, _ in queue.log.remove_all())

    def record_first_delivery(self, queue: TaskQueue, last: int) -> None:
        """Account for the first delivery of messages up to a sequence, to a consumer or a reader."""
        queue.times.record_removal(last, time.monotonic(), self.queue_wait)
        if self.observer is not None:
            self.observer.on_delivered(queue.task, last, self.queue_wait)

    def record_delivery(self, queue: TaskQueue, deliveries: Sequence[Delivery]) -> None:
        """Account for messages that were delivered to a queue's consumer."""
        self.record_first_delivery(queue, queue.log.last_taken)
        for delivery in deliveries:
            if delivery.group.redelivered:
                self.redelivered_messages += delivery.group.count

    async def wait_for_change(self, last_read: Mapping[int, int], seconds: float) -> None:
        """Wait until a task has messages after its last seen sequence, or is not local.

        Readers track their own position, and do not count as consumers.

        1. A task has such messages, or is not local: return immediately.
        2. Too many tasks are watched: return immediately, and the reader polls again.
        3. Otherwise wait until a queue wakes its readers, at most `seconds`.
        """
        change = asyncio.Event()
        queues = [(queue, last) for task, last in last_read.items() if (queue := self.by_task.get(task))]
        # 1. The reader must find the new owner of a task that has moved.
        if len(queues) < len(last_read) or any(queue.log.tail > last for queue, last in queues):
            return
        # 2. A reader that polls again uses no memory in between.
        if self._watched_count + len(queues) > _MAX_WATCHED_TASKS:
            return
        # 3. A cancelled call must leave no event in a queue.
        self._watched_count += len(queues)
        for queue, _ in queues:
            queue.reader_events.add(change)
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(change.wait(), seconds)
        finally:
            self._watched_count -= len(queues)
            for queue, _ in queues:
                queue.reader_events.discard(change)

    def _get_without_consumer(self, task: int) -> TaskQueue:
        queue = self.by_task.get(task)
        if queue is None:
            raise self.not_local_error(task)
        if queue.consumer is not None:
            raise SupersededError(f"task {task} has the consumer {queue.consumer_key[1]!r}; stop it first")
        return queue

    def read(self, task: int, after: int, last: int, max_bytes: int) -> list[Delivery]:
        """Return messages after a sequence, up to `last`. Raises SupersededError if there is a consumer."""
        queue = self._get_without_consumer(task)
        found = queue.log.read(after, last, max_bytes)
        if found:
            self.record_first_delivery(queue, found[-1].last_sequence)
        return found

    def acknowledge(self, task: int, sequence: int) -> bool:
        """Release messages; return True if more may remain. Raises SupersededError as read() does."""
        # The messages of a task that moves are forwarded, so there is nothing to release here.
        if task not in self.by_task:
            return False
        queue = self._get_without_consumer(task)
        # Delivered first, because only delivered messages can be acknowledged.
        self.record_delivery(queue, queue.log.take(sequence, sys.maxsize, sys.maxsize, limit=TURN_GROUPS))
        done = queue.log.apply_progress(sequence, sequence, TURN_GROUPS)
        if done:
            self.on_acknowledged(task, done)
        return bool(done)
