"""Readers of receive queues: they keep track of what they have read themselves, and are no consumers."""

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
"""Groups acknowledged in one turn of the loop: with more, other sessions would notice."""
_MOST_WATCHED = 100_000
"""For so many tasks readers may wait at once, all together."""


class QueueReaders:
    """Serves readers of a worker's queues, where a task has no consumer. Belongs to the event loop."""

    def __init__(self, queues: ReceiveQueues) -> None:
        self._queues = queues
        self._watched = 0

    async def wait_for_change(self, seen: Mapping[int, int], seconds: float) -> None:
        """Wait until one of some tasks has more than was seen, by its last sequence, or is not here."""
        change = asyncio.Event()
        queues = [(queue, last) for task, last in seen.items() if (queue := self._queues.get(task))]
        if len(queues) < len(seen) or any(queue.log.tail > last for queue, last in queues):
            return
        if self._watched + len(queues) > _MOST_WATCHED:
            return  # the reader asks again, and takes no memory meanwhile
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
        """Return messages of a local task that come after a sequence, up to another, for one frame.

        Raises SupersededError if it has a consumer.
        """
        queue = self._unconsumed(task)
        found = queue.log.read(after, last, max_bytes)
        if found:
            self._queues.reached(queue, found[-1].last)
        return found

    def acknowledge(self, task: int, sequence: int) -> bool:
        """Release messages of a local task up to a sequence, some at a time; return whether to call again.

        Raises SupersededError if it has a consumer.
        """
        if task not in self._queues:
            return False
        queue = self._unconsumed(task)
        self._queues.taken(queue, queue.log.take(sequence, sys.maxsize, sys.maxsize, most=_TURN_GROUPS))
        done = queue.log.progress(sequence, sequence, _TURN_GROUPS)
        if done:
            self._queues.on_done(task, done)
        return bool(done)
