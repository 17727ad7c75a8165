"""The receive queues of a worker, and what serves their consumers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from helpers.rejecting import RejectionsWithoutTimers
from tuplewire.errors import UnknownTaskError
from tuplewire_service.worker.queue_subscription import QueueConsumers
from tuplewire_service.worker.receive_queues import ReceiveQueues
from tuplewire_service.worker.worker_settings import WorkerSettings


def queues_of(tasks: Iterable[int], **settings: Any) -> ReceiveQueues:
    """Return the queues of tasks that have just come to a worker."""
    queues = ReceiveQueues(
        WorkerSettings(worker_id="w", topology="t", **settings),
        lambda _task, _done: None,
        lambda task: UnknownTaskError(str(task)),
    )
    queues.assign(tasks)
    return queues


def consumers_of(queues: ReceiveQueues, rejections: RejectionsWithoutTimers | None = None) -> QueueConsumers:
    """Return what serves the consumers of some queues."""
    return QueueConsumers(1, queues, rejections or RejectionsWithoutTimers())
