"""The receive queues of a worker, and their consumers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from helpers.rejecting import RejectionsWithoutTimers
from helpers.senders import Program
from tuplewire.errors import UnknownTaskError
from tuplewire.settings.config import MIB
from tuplewire.values.group import TaskGroup
from tuplewire.wire import messaging_pb2 as pb
from tuplewire_service.messaging.server_stream import EVERYTHING
from tuplewire_service.worker.queue import Queue
from tuplewire_service.worker.queue_subscription import QueueConsumers
from tuplewire_service.worker.receive_queues import ReceiveQueues
from tuplewire_service.worker.router import Router
from tuplewire_service.worker.worker_settings import WorkerSettings


def queues_of(tasks: Iterable[int], **settings: Any) -> ReceiveQueues:
    """Return the queues of tasks that were just assigned to a worker."""
    queues = ReceiveQueues(
        WorkerSettings(worker_id="w", topology="t", **settings),
        lambda _task, _done: None,
        lambda task: UnknownTaskError(str(task)),
    )
    queues.assign(tasks)
    return queues


def delivered(*payloads: bytes, sender: Program | None = None) -> Queue:
    """Return the queue of task 1, with all its messages delivered."""
    queues = queues_of([1])
    queues.put(TaskGroup.of(1, payloads), sender or Program())
    queue = queues.get(1)
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
    return consumers.subscribe(request, EVERYTHING, "", wake)


def consumers_of(queues: ReceiveQueues, rejections: RejectionsWithoutTimers | None = None) -> QueueConsumers:
    """Return the QueueConsumers of some queues."""
    return QueueConsumers(1, queues, rejections or RejectionsWithoutTimers())
