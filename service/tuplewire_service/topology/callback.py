"""What a server connection of a worker with executors delivers to. Source: Storm's class of the same name."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from tuplewire.errors import ClosedError, DrainingError, UnknownTaskError
from tuplewire.group import TaskGroup
from tuplewire.topology.link import Receive
from tuplewire_service.messaging.base import IConnectionCallback, Origin, ReceivedBatch


class DeserializingConnectionCallback(IConnectionCallback):
    """Batches in, addressed tuples out: they go to the executors' queues, without waiting.

    The sender has its room back once a group is processed, so that its credit bounds what is in the queues.
    Messages to tasks that are not here are refused, and so is everything once the executors have ended.
    """

    def __init__(self, tasks: Collection[int], receive: Receive) -> None:
        self.tasks = frozenset(tasks)
        self._receive = receive

    def recv(self, batch: ReceivedBatch) -> None:
        """Pass a batch on, group by group."""
        batch.hold()
        done = partial(_release, batch.origin)
        for group in batch.groups:
            if group.task not in self.tasks:
                batch.refuse(group, UnknownTaskError(f"task {group.task} is not in this process"))
                continue
            try:
                self._receive([group], done)
            except ClosedError:
                batch.refuse(group, DrainingError(f"the executor of task {group.task} has ended"))


def _release(origin: Origin, group: TaskGroup) -> None:
    origin.release(group.task, len(group), len(group.data))
