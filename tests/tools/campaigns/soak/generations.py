"""Generations of tasks: an assignment with fresh task ids, spread over the workers, without earlier ones."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

TASKS = 40
"""Tasks of one generation."""
_QUIET = 4
_FIRST = 1000
STEADY_TASKS = (501, 502)
"""The permanent tasks of the workers near and far."""
ROAMING_TASK = 503
"""A permanent task that moves."""

Owners = dict[int, str]
"""Task -> its worker."""


class Generation:
    """Tasks with new ids."""

    def __init__(self, number: int) -> None:
        """Create the tasks. number: from 0."""
        first = _FIRST + number * TASKS
        self.all = range(first, first + TASKS)
        self.consumed = [task for task in self.all if is_consumed(task)]
        self.quiet = [task for task in self.all if not is_consumed(task)]

    def spread(self, chance: random.Random, workers: Sequence[str]) -> Owners:
        """Assign the tasks evenly to these workers."""
        tasks = [*self.all, ROAMING_TASK]
        chance.shuffle(tasks)
        return {task: workers[index % len(workers)] for index, task in enumerate(tasks)}


def moved(chance: random.Random, owners: Mapping[int, str], workers: Sequence[str]) -> Owners:
    """Return owners, changed for half of the tasks and the roaming task."""
    changing = {ROAMING_TASK, *chance.sample(sorted(owners), len(owners) // 2)}
    return {
        task: chance.choice([each for each in workers if each != owner]) if task in changing else owner
        for task, owner in owners.items()
    }


def without(chance: random.Random, owners: Mapping[int, str], leaving: str, workers: Sequence[str]) -> Owners:
    """Return owners after one worker has left."""
    return {
        task: chance.choice(workers) if owner == leaving else owner for task, owner in sorted(owners.items())
    }


def is_fresh(task: int) -> bool:
    """Return True if a task belongs to a generation."""
    return task >= _FIRST


def is_consumed(task: int) -> bool:
    """Return True if the follower consumes a task: the roaming task, or one that is fresh and not quiet."""
    if is_fresh(task):
        return (task - _FIRST) % TASKS < TASKS - _QUIET
    return task == ROAMING_TASK
