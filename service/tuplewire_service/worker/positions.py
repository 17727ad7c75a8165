"""The order in which a worker takes messages in from programs, task by task.

A position goes with its messages from worker to worker, so that each of them can tell, while a task moves,
what comes before what (worker/moves.py).
"""

from __future__ import annotations

from tuplewire.group import TaskGroup


class Positions:
    """Counts what programs hand over. Belongs to the event loop."""

    def __init__(self) -> None:
        self._next: dict[int, int] = {}

    def place(self, group: TaskGroup, now_micros: int) -> TaskGroup:
        """Return messages with their position, from 1 for a task's first; now_micros: see TaskGroup.at."""
        position = self._next.get(group.task, 1)
        self._next[group.task] = position + len(group)
        return group.at(position, now_micros)
