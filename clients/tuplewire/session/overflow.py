"""The policy `drop_oldest`: how much must go for an offer to fit, and which task has the oldest messages."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush, heapreplace


def excess(held: int, offered: int, bound: int) -> int:
    """Return how much of `held` is in the way of an offer.

    An offer that is itself over the bound is taken only when nothing else is held, so all of it is.
    """
    over = held + offered - bound
    return min(held, over) if over > 0 else 0


class OldestTask:
    """Finds the task with the oldest message, at a cost that does not grow with the number of messages.

    A heap holds, for each task, the age of its first message at some earlier time. That message may be gone.
    find() notices this when the task comes up, and corrects the entry.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []
        self._known: set[int] = set()

    def add(self, task: int, age: int) -> None:
        """Note a message that was put behind the others of its task; ages never fall."""
        if task not in self._known:
            self._known.add(task)
            heappush(self._heap, (age, task))

    def find(self, age_of: Callable[[int], int]) -> int:
        """Return the task with the oldest message; there must be one.

        age_of: returns the age of a task's oldest message, 0 when it has none.
        """
        heap = self._heap
        while True:
            known, task = heap[0]
            age = age_of(task)
            if age == known:
                return task
            if age:
                heapreplace(heap, (age, task))
            else:
                heappop(heap)
                self._known.discard(task)
