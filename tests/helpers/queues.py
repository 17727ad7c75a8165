"""The receive queues of a worker, with their senders, consumers and rejections, without an event loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tuplewire.errors import UnknownTaskError
from tuplewire.session.ledger import Ledger
from tuplewire.settings.config import MIB
from tuplewire.values.group import TaskGroup
from tuplewire.wire import messaging_pb2 as pb
from tuplewire_service.messaging.server_stream import FULL_ACCESS
from tuplewire_service.worker.assignment import AssignedWorker, Assignment
from tuplewire_service.worker.queue_subscription import QueueConsumers
from tuplewire_service.worker.receive_queues import ReceiveQueues
from tuplewire_service.worker.rejections import Rejections
from tuplewire_service.worker.router import Router
from tuplewire_service.worker.task_queue import TaskQueue
from tuplewire_service.worker.worker_settings import WorkerSettings

HERE = AssignedWorker("here", "127.0.0.1:1", (0,))
THERE = AssignedWorker("there", "127.0.0.1:2", (1,))
ASSIGNMENT = Assignment(1, "t", (HERE, THERE))
"""For a router of the worker `here`: task 0 is local, task 1 is on another worker."""


class Program:
    """A sender that counts released messages; awaits_releases: it waits until they are processed."""

    source, sender_id = "program", "p"

    def __init__(self, worker_number: int = 0, *, awaits_releases: bool = True) -> None:
        self.worker_number = worker_number
        self.awaits_releases = awaits_releases
        self.released = 0

    def release(self, task: int, messages: int, size_bytes: int) -> None:
        """Count the messages."""
        del task, size_bytes
        self.released += messages


class RejectionsWithoutTimers(Rejections):
    """The same state without timers: no message is redelivered automatically."""

    def __init__(self, limit: int = 5, dead_letter_task: int | None = None, most: int = 100) -> None:
        settings = WorkerSettings(
            worker_id="w",
            reject_limit=limit,
            dead_letter_task=dead_letter_task,
            receive_queue_messages=most,
            receive_queue_bytes=MIB,
        )
        super().__init__(settings, Ledger(), lambda _: None, lambda _: True)

    def schedule(self, at: float) -> None:
        """Do nothing."""


def queues_of(tasks: Iterable[int], **settings: Any) -> ReceiveQueues:
    """Return the queues of tasks that were just assigned to a worker."""
    queues = ReceiveQueues(
        WorkerSettings(worker_id="w", topology="t", **settings),
        lambda _task, _done: None,
        lambda task: UnknownTaskError(str(task)),
    )
    queues.set_local_tasks(tasks)
    return queues


def delivered(*payloads: bytes, sender: Program | None = None) -> TaskQueue:
    """Return the queue of task 1, with all its messages delivered."""
    queues = queues_of([1])
    queues.put(TaskGroup.of(1, payloads), sender or Program())
    queue = queues.by_task.get(1)
    assert queue is not None
    queue.log.take(len(payloads), MIB, MIB)
    return queue


def subscribe(
    consumers: QueueConsumers | Router,
    consumer_id: str,
    cursors: Iterable[pb.TaskCursor],
    wake: Callable[[], None] = lambda: None,
    **fields: Any,
) -> Any:
    """Subscribe a consumer, with its first incarnation and all rights."""
    request = pb.Subscribe(**{"consumer_id": consumer_id, "incarnation": 1, "tasks": cursors, **fields})
    return consumers.subscribe(request, FULL_ACCESS, "", wake)


def consumers_of(queues: ReceiveQueues, rejections: RejectionsWithoutTimers | None = None) -> QueueConsumers:
    """Return the QueueConsumers of some queues."""
    return QueueConsumers(1, queues, rejections or RejectionsWithoutTimers())
