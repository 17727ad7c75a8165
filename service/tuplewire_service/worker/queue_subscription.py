"""The consumers of receive queues. Each queue has one; the newest subscriber takes it over.

Used by router.py. Owns the subscriptions; the queues belong to receive_queues.py. Call only from the event
loop. Design: docs/design/credit.md (queues) and docs/design/acking.md (rejected messages).
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from tuplewire.errors import (
    PermissionDeniedError,
    RefusedError,
    SequenceGapError,
    StaleIncarnationError,
    SupersededError,
)
from tuplewire.session.consume import Delivery
from tuplewire.session.pieces import wire_bytes
from tuplewire.values.group import MAX_FRAME_GROUPS
from tuplewire.wire import control_pb2 as pb
from tuplewire.wire.messaging_pb2 import RejectedTask, Subscribe, TaskCursor
from tuplewire_service.messaging.recv_service import ISubscription
from tuplewire_service.messaging.server_stream import AccessRights
from tuplewire_service.worker.delivery import AckedGroup
from tuplewire_service.worker.moves import LostWorkers
from tuplewire_service.worker.receive_queues import TURN_GROUPS, ReceiveQueues
from tuplewire_service.worker.rejections import Rejections
from tuplewire_service.worker.task_queue import Consumer, TaskQueue

_ACK_REQUEST_LOAD = 0.25
"""Queue load from which consumers are urged to acknowledge, because a sender will soon wait for credit."""


@dataclass(eq=False, repr=False)
class QueueSubscription(ISubscription, Consumer):
    """The subscription of one consumer to some queues."""

    consumers: QueueConsumers
    wake: Callable[[], None]
    consumer_key: tuple[str, str]
    """The consumer's owner and its id."""
    address: str
    ready_tasks: dict[int, None] = field(default_factory=dict)
    rejection_answers: dict[int, RejectedTask] = field(default_factory=dict)
    moved_tasks: list[int] = field(default_factory=list)
    _started_at: float = field(default_factory=time.monotonic)
    _queues_by_task: dict[int, TaskQueue] = field(default_factory=dict)
    _deferred_reports: list[TaskCursor] = field(default_factory=list)
    """Consumer reports that were too large for one turn of the loop."""

    def add(self, queue: TaskQueue, report: TaskCursor | None) -> None:
        """Add a queue. `report`: a report of the consumer that apply_progress() must finish."""
        self._queues_by_task[queue.task] = queue
        if report is not None:
            self._deferred_reports.append(report)
        self.ready_tasks[queue.task] = None

    def mark_ready(self, queue: TaskQueue) -> None:
        self.ready_tasks[queue.task] = None
        self.wake()

    def end(self, error: RefusedError) -> None:
        self.close()
        self.end_error = error
        self.wake()

    def status(self, now: float) -> pb.ConsumerStatus:
        queues = self._queues_by_task
        return pb.ConsumerStatus(
            consumer_id=self.consumer_key[1],
            identity=self.consumer_key[0],
            address=self.address,
            subscribed_seconds=now - self._started_at,
            tasks=sorted(queues),
            task_count=len(queues),
            outstanding_messages=sum(each.log.last_taken - each.log.acknowledged for each in queues.values()),
        )

    @property
    def positions(self) -> Sequence[tuple[int, int]]:
        return [(task, queue.log.last_taken) for task, queue in self._queues_by_task.items()]

    @property
    def has_unacknowledged(self) -> bool:
        return any(queue.log.queued_messages for queue in self._queues_by_task.values())

    def take(self, max_bytes: int) -> list[Delivery]:
        """See ISubscription. Serves the tasks in turn.

        1. The task moves, or a rejected message blocks it: it is skipped until mark_ready() is called.
        2. There is no credit, or no message: it is skipped until apply_progress() or mark_ready() is called.
        3. Messages remain after a delivery: the other tasks are served first.
        """
        deliveries: list[Delivery] = []
        self.acks_urgent = False
        lost_workers = self.consumers.lost_workers
        # A resent copy of a lost worker's message may have arrived earlier.
        may_repeat = lost_workers.accepted if lost_workers.numbers else None
        while self.ready_tasks and max_bytes > 0 and len(deliveries) < MAX_FRAME_GROUPS:
            task = next(iter(self.ready_tasks))
            del self.ready_tasks[task]
            queue = self._queues_by_task[task]
            # 1. The new owner delivers the messages of a task that moves; see docs/design/moves.md.
            if queue.is_leaving or (queue.blocked_until and self.consumers.rejections.check_blocked(queue)):
                continue
            most = MAX_FRAME_GROUPS - len(deliveries)
            taken = queue.log.take(queue.credit, queue.credit_bytes, max_bytes, may_repeat, most)
            # 2. A task without credit must not keep the loop busy.
            if not taken:
                continue
            self.consumers.queues.record_delivery(queue, taken)
            deliveries += taken
            self.acks_urgent |= self.consumers.queues.load(task) >= _ACK_REQUEST_LOAD
            # 3. One task must not fill all frames.
            if queue.log.last_taken < queue.log.tail:
                self.ready_tasks[task] = None
            if self.ready_tasks:
                max_bytes -= sum(wire_bytes(delivery.group) for delivery in taken)
        return deliveries

    def apply_progress(self, cursors: Sequence[TaskCursor]) -> bool:
        deferred_reports, self._deferred_reports = self._deferred_reports, []
        for cursor in (*deferred_reports, *cursors):
            queue = self._queues_by_task.get(cursor.task)
            if queue is not None:
                if self.consumers.apply_progress(queue, cursor):
                    self._deferred_reports.append(cursor)
                elif cursor.rejections:
                    self.rejection_answers[cursor.task] = RejectedTask(
                        task=cursor.task,
                        rejection_number=queue.last_rejection,
                        received_sequence=queue.log.last_taken,
                    )
                    self.wake()
                if queue.log.last_taken < queue.log.tail:
                    self.ready_tasks[cursor.task] = None
        # Rejections and credit may have made messages deliverable.
        if self.ready_tasks:
            self.wake()
        return bool(self._deferred_reports)

    def remove_queue(self, queue: TaskQueue) -> None:
        queue.consumer = None
        del self._queues_by_task[queue.task]
        self.ready_tasks.pop(queue.task, None)
        if not self._queues_by_task:
            self.end(self.consumers.queues.not_local_error(queue.task))
            return
        self.moved_tasks.append(queue.task)
        self.wake()

    def close(self) -> None:
        queues, self._queues_by_task = self._queues_by_task, {}
        self.ready_tasks.clear()
        for queue in queues.values():
            queue.consumer = None
            # The router may be waiting for this consumer to empty the queue.
            if queue.is_leaving:
                self.consumers.queues.on_acknowledged(queue.task, ())


@dataclass(eq=False, repr=False)
class QueueConsumers:
    """Serves the consumers of a worker's queues. Call only from the event loop."""

    incarnation: int
    queues: ReceiveQueues
    rejections: Rejections
    lost_workers: LostWorkers = field(default_factory=LostWorkers)
    program_tasks: Container[int] = ()
    """Tasks of the program in this process; subscriptions of other consumers are refused."""

    def subscribe(
        self, request: Subscribe, access: AccessRights, address: str, wake: Callable[[], None]
    ) -> QueueSubscription:
        """See ISubscriptionSource.

        1. The program in this process has the task: PermissionDeniedError for any other consumer.
        2. A task is not local: the error of RoutingTable.not_local_error().
        3. A newer incarnation of this consumer was the last one with the task: StaleIncarnationError.
        4. The consumer reconnects or follows the task, and another consumer has it: SupersededError.
        5. Otherwise it takes over all tasks, also from other consumers.
        """
        key = access.owner, request.consumer_id
        requested_queues = []
        for cursor in request.tasks:
            # 1. The program would miss these messages.
            if cursor.task in self.program_tasks and not access.is_own_program:
                raise PermissionDeniedError(
                    f"task {cursor.task} is run by worker {self.queues.settings.worker_id} itself: "
                    "no other consumer may have its messages"
                )
            # 2. A task that moves accepts no consumer here, so its queue can be forwarded.
            queue = self.queues.by_task.get(cursor.task)
            if queue is None:
                raise self.queues.not_local_error(cursor.task)
            requested_queues.append((queue, cursor))
            # 3. An old process of the consumer may still try to reconnect.
            if queue.consumer_key == key and queue.consumer_incarnation > request.incarnation:
                raise StaleIncarnationError(
                    f"consumer {request.consumer_id!r}: "
                    f"incarnation {queue.consumer_incarnation} has taken over; stop this one"
                )
            # 4. Such a consumer may not know yet that another one has taken over.
            is_reconnect = request.follows_tasks or request.worker_incarnation == self.incarnation
            has_other = (queue.consumer_key, queue.subscription_id) != (key, request.subscription_id)
            if is_reconnect and queue.consumer is not None and has_other:
                raise _superseded_error(queue.consumer_key[1], queue.task)
        subscription = QueueSubscription(self, wake, key, address)
        # 5. Only after all checks: a refused request must not end another subscription.
        for queue, cursor in requested_queues:
            self._attach_queue(queue, subscription, cursor, request)
        return subscription

    def _attach_queue(
        self, queue: TaskQueue, subscription: QueueSubscription, cursor: TaskCursor, request: Subscribe
    ) -> None:
        """Give a queue to a subscription.

        1. The same subscription returns to the same process of the worker: it continues at its cursor.
        2. Otherwise delivered and unacknowledged messages are delivered again, marked redelivered.
        """
        wanted = subscription.consumer_key, request.incarnation, request.subscription_id
        same = (queue.consumer_key, queue.consumer_incarnation, queue.subscription_id) == wanted
        resumes = same and request.worker_incarnation == self.incarnation
        if queue.consumer is not None:
            # Two streams of one consumer may arrive in either order; the refused one is retried.
            queue.consumer.end(
                SequenceGapError(f"consumer {request.consumer_id!r} has opened another stream")
                if same
                else _superseded_error(request.consumer_id, queue.task)
            )
        deferred_report: TaskCursor | None = None
        queue.consumer = subscription
        queue.consumer_key, queue.consumer_incarnation, queue.subscription_id = wanted
        # 1. The report in the request counts first: it may acknowledge or reject messages.
        if resumes:
            self.queues.on_acknowledged(queue.task, self._settle(queue, cursor))
            deferred_report = cursor if _is_unfinished(queue, cursor) else None
            # A message must stay delivered until its rejection is settled.
            rejected = cursor.rejections[-1].sequence if deferred_report and cursor.rejections else 0
            queue.log.rewind(max(cursor.received_sequence, rejected))
            queue.credit = cursor.credit_sequence
        else:
            queue.last_rejection = 0
            queue.log.rewind()
            # 2. A new consumer's cursor starts at 0; the queue continues after its last acknowledged message.
            queue.credit = queue.log.acknowledged + cursor.credit_sequence - cursor.acknowledged_sequence
        queue.credit_bytes = cursor.credit_bytes
        subscription.add(queue, deferred_report)

    def apply_progress(self, queue: TaskQueue, cursor: TaskCursor) -> bool:
        """Apply the progress that a consumer reports; return True if a part of it remains."""
        done = self._settle(queue, cursor)
        # The rest of a deferred report may be older than the last report.
        queue.credit = max(queue.credit, cursor.credit_sequence)
        queue.credit_bytes = cursor.credit_bytes
        # A rejection alone can end the wait for a queue that moves: no delivery is unacknowledged then.
        if done or cursor.rejections:
            self.queues.on_acknowledged(queue.task, done)
        return _is_unfinished(queue, cursor)

    def _settle(self, queue: TaskQueue, cursor: TaskCursor) -> list[AckedGroup]:
        """Advance a log's cursors and apply each rejection once, at most `TURN_GROUPS` groups at a time."""
        done: list[AckedGroup] = []
        arrived = cursor.received_sequence
        first = bisect_right(cursor.rejections, queue.last_rejection, key=attrgetter("number"))
        for each in cursor.rejections[first : first + TURN_GROUPS]:
            # Messages before a rejected one are acknowledged: only the oldest message can be rejected.
            done += queue.log.apply_progress(each.sequence - 1, arrived, TURN_GROUPS - len(done))
            if len(done) >= TURN_GROUPS:
                return done
            # Processed once: the consumer repeats a rejection until the worker answers it.
            queue.last_rejection = each.number
            if (removed := self.rejections.reject(queue, each)) is not None:
                done.append(removed)
        if first + TURN_GROUPS < len(cursor.rejections):
            return done
        return done + queue.log.apply_progress(cursor.acknowledged_sequence, arrived, TURN_GROUPS - len(done))


def _is_unfinished(queue: TaskQueue, cursor: TaskCursor) -> bool:
    """Return True if a part of a consumer's report is not processed yet."""
    rejected = cursor.rejections[-1].number if cursor.rejections else 0
    acknowledged = min(cursor.acknowledged_sequence, queue.log.last_taken)
    return rejected > queue.last_rejection or acknowledged > queue.log.acknowledged


def _superseded_error(consumer: str, task: int) -> SupersededError:
    return SupersededError(f"consumer {consumer!r} has taken task {task} over: stop it, or use another task")
