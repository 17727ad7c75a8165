"""The policy `drop_oldest`: how much must go for an offer to fit, and which task has the oldest messages."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush, heapreplace


def excess(held: int, offered: int, bound: int) -> int:
    """Return how much of what is held is in the way of an offer.

    That is all of it when the offer itself is over the bound: such a one is taken when nothing else is held.
    """
    over = held + offered - bound
    return min(held, over) if over > 0 else 0


class OldestTask:
    """Finds the task with the oldest message, at a cost that does not grow with the number of messages.

    What is known of a task is the age of a message that it had first at some time. It may have gone since:
    that is found out, and put right, when the task comes up.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []
        self._known: set[int] = set()

    def add(self, task: int, age: int) -> None:
        """Take note of a message that was put behind the others of its task; ages never fall."""
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
