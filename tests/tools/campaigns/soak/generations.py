"""Generations of tasks: an assignment with fresh task ids, spread over the workers, without those before."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

TASKS = 40
"""Of one generation."""
_QUIET = 4
_FIRST = 1000
STEADY_TASKS = (501, 502)
"""At the workers near and far, for good."""
ROAMING_TASK = 503
"""It is there for good, and moves."""
MEASURED_TASK = 504
"""At the worker far, and at its counterpart that lives in peace."""

Owners = dict[int, str]
"""Which worker has each task."""


class Generation:
    """Tasks that have not been before."""

    def __init__(self, number: int) -> None:
        """Begin. number: from 0."""
        first = _FIRST + number * TASKS
        self.all = range(first, first + TASKS)
        self.consumed = [task for task in self.all if is_consumed(task)]
        self.quiet = [task for task in self.all if not is_consumed(task)]

    def spread(self, chance: random.Random, workers: Sequence[str]) -> Owners:
        """Give every task to one of these workers, and each worker as many."""
        tasks = [*self.all, ROAMING_TASK]
        chance.shuffle(tasks)
        return {task: workers[index % len(workers)] for index, task in enumerate(tasks)}


def moved(chance: random.Random, owners: Mapping[int, str], workers: Sequence[str]) -> Owners:
    """Return owners of whom half, and the task that roams, have changed."""
    changing = {ROAMING_TASK, *chance.sample(sorted(owners), len(owners) // 2)}
    return {
        task: chance.choice([each for each in workers if each != owner]) if task in changing else owner
        for task, owner in owners.items()
    }


def without(chance: random.Random, owners: Mapping[int, str], leaving: str, workers: Sequence[str]) -> Owners:
    """Return owners of whom one has left."""
    return {
        task: chance.choice(workers) if owner == leaving else owner for task, owner in sorted(owners.items())
    }


def is_fresh(task: int) -> bool:
    """Whether a task belongs to a generation."""
    return task >= _FIRST


def is_consumed(task: int) -> bool:
    """Whether the follower consumes a task: one that roams, or of a generation and not quiet."""
    if is_fresh(task):
        return (task - _FIRST) % TASKS < TASKS - _QUIET
    return task == ROAMING_TASK
