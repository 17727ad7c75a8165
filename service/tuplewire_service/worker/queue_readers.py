"""Readers of receive queues. They track their own position, and do not count as consumers."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Mapping

from tuplewire.errors import SupersededError
from tuplewire.session.delivery import Delivery
from tuplewire_service.worker.queue import Queue
from tuplewire_service.worker.receive_queues import ReceiveQueues

_TURN_GROUPS = 100
"""Maximum number of groups acknowledged in one turn of the loop, so that other sessions are not delayed."""
_MOST_WATCHED = 100_000
"""Maximum number of tasks that all readers together may wait for."""


class QueueReaders:
    """Serves readers of queues that have no consumer. Call only from the event loop."""

    def __init__(self, queues: ReceiveQueues) -> None:
        self._queues = queues
        self._watched = 0

    async def wait_for_change(self, seen: Mapping[int, int], seconds: float) -> None:
        """Wait until a task has messages after its last seen sequence, or is not local."""
        change = asyncio.Event()
        queues = [(queue, last) for task, last in seen.items() if (queue := self._queues.get(task))]
        if len(queues) < len(seen) or any(queue.log.tail > last for queue, last in queues):
            return
        if self._watched + len(queues) > _MOST_WATCHED:
            return  # the reader polls again, and uses no memory until then
        self._watched += len(queues)
        for queue, _ in queues:
            queue.readers.add(change)
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(change.wait(), seconds)
        finally:
            self._watched -= len(queues)
            for queue, _ in queues:
                queue.readers.discard(change)

    def _unconsumed(self, task: int) -> Queue:
        """Return the queue of a local task; SupersededError if it has a consumer."""
        queue = self._queues.get(task)
        if queue is None:
            raise self._queues.not_here(task)
        if queue.consumer is not None:
            raise SupersededError(
                f"task {task} has a consumer, {queue.consumer_key[1]!r}: to read it, end that one"
            )
        return queue

    def read(self, task: int, after: int, last: int, max_bytes: int) -> list[Delivery]:
        """Return messages of a local task after one sequence and up to another, for one frame.

        Raises SupersededError if the task has a consumer.
        """
        queue = self._unconsumed(task)
        found = queue.log.read(after, last, max_bytes)
        if found:
            self._queues.reached(queue, found[-1].last)
        return found

    def acknowledge(self, task: int, sequence: int) -> bool:
        """Release some messages of a local task up to a sequence; return True if more may remain.

        Raises SupersededError if the task has a consumer.
        """
        if task not in self._queues:
            return False
        queue = self._unconsumed(task)
        self._queues.taken(queue, queue.log.take(sequence, sys.maxsize, sys.maxsize, most=_TURN_GROUPS))
        done = queue.log.progress(sequence, sequence, _TURN_GROUPS)
        if done:
            self._queues.on_done(task, done)
        return bool(done)
