"""Which of a worker's tasks are worth a look, where there are too many to look at all of them."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from tuplewire.errors import MAX_TASK
from tuplewire_service.worker.queue_subscription import Queue

_FRESH_SECONDS = 0.9
"""So long a choice holds, whoever asks: of a shorter time, how much has come says little."""
_AT_ONCE = 1000
"""So many are looked at before others have their turn: a fraction of a millisecond."""
_URGENT, _WAITS = 1 << 8, 1 << 7
"""More than any number of bits."""


class ShownTasks:
    """Chooses tasks: those first that hold others up, then those that wait, then those with most to do.

    Belongs to the event loop. A choice among 10,000 takes some 3 ms, with turns for others in between.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with none. clock: in seconds."""
        self._clock = clock
        self._chosen: list[int] = []
        self._most = 0
        self._chosen_at = float("-inf")
        self._tails: dict[int, int] = {}

    async def choose(self, queues: Mapping[int, Queue], urgent: Collection[int], most: int) -> Sequence[int]:
        """Return so many tasks at most, by number. urgent: those that hold others up.

        A task waits when a message is not acknowledged that was there at the choice before. One that was
        chosen before stays unless another one has twice as much to do: a picture whose tasks change at each
        look cannot be read.
        """
        now = self._clock()
        fresh = most == self._most and now - self._chosen_at < _FRESH_SECONDS
        if fresh and all(task in queues for task in self._chosen):
            return self._chosen
        tails: dict[int, int] = {}
        ranks: list[int] = []
        tasks = list(queues)
        for start in range(0, len(tasks), _AT_ONCE):
            await asyncio.sleep(0)
            some = [(task, queue) for task in tasks[start : start + _AT_ONCE] if (queue := queues.get(task))]
            ranks += self._ranks(some, urgent)
            tails.update((task, queue.log.tail) for task, queue in some)
        chosen = {MAX_TASK - rank % (MAX_TASK + 1) for rank in heapq.nlargest(most, ranks)}
        chosen.update(heapq.nsmallest(most - len(chosen), (each for each in tails if each not in chosen)))
        self._chosen, self._most, self._chosen_at, self._tails = sorted(chosen), most, now, tails
        return self._chosen

    def _ranks(self, queues: Iterable[tuple[int, Queue]], urgent: Collection[int]) -> Iterator[int]:
        """Yield the ranks of those that are of interest, each with its task: the greater, the sooner."""
        tails, chosen = self._tails, set(self._chosen)
        kept = chosen.union(urgent)
        for task, queue in queues:
            log = queue.log
            tail, acknowledged = log.tail, log.acknowledged
            then = tails.get(task, tail)
            if acknowledged == tail == then and task not in kept:
                continue
            rank = max(tail - acknowledged, tail - then).bit_length()
            if acknowledged < then:
                rank += _WAITS
            if task in chosen:
                rank += 1
            if task in urgent:
                rank += _URGENT
            yield rank * (MAX_TASK + 1) + MAX_TASK - task
