"""Lists of tasks, as programs and as people write them: `[1, 2]`, `1,2,10-19`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import SupportsIndex

from tuplewire.errors import MAX_TASK, ConfigError, InvalidTaskError
from tuplewire.group import check_task
from tuplewire.settings import Kind

_MAX_TASKS = 100_000


def parse_tasks(text: str) -> tuple[int, ...]:
    """Read task ids and ranges of them, `1,2,10-19`, in the order given; ConfigError for anything else."""
    tasks: dict[int, None] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,10})(?:\s*-\s*(\d{1,10}))?\s*", part, re.ASCII)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last <= MAX_TASK or last - first >= _MAX_TASKS:
            raise ConfigError(f"task ids are written like 1,2,10-19, from 0 to {MAX_TASK}, not {text!r}")
        tasks.update(dict.fromkeys(range(first, last + 1)))
    return tuple(tasks)


@dataclass(frozen=True, slots=True)
class TaskRanges:
    """Tasks by their ids, whether they are assigned yet or not. ranges: the first and the last of each."""

    ranges: tuple[tuple[int, int], ...]

    def __contains__(self, task: object) -> bool:
        return isinstance(task, int) and any(first <= task <= last for first, last in self.ranges)


def parse_ranges(text: str) -> tuple[int, ...] | TaskRanges:
    """Read what parse_tasks() reads, and besides `100-` (all from 100 on) and `*` (all); then, TaskRanges."""
    parts = [part.strip() for part in text.split(",")]
    if not any(part == "*" or part.endswith("-") for part in parts):
        return parse_tasks(text)
    ranges = []
    for part in parts:
        tasks = parse_tasks("0" if part == "*" else part.removesuffix("-"))
        ranges.append((tasks[0], MAX_TASK if part == "*" or part.endswith("-") else tasks[-1]))
    return TaskRanges(tuple(ranges))


def check_tasks(tasks: SupportsIndex | Iterable[SupportsIndex]) -> list[int]:
    """Return the ids of some tasks, or of one; InvalidTaskError for what is none, and for no task at all."""
    if isinstance(tasks, str | bytes):
        raise InvalidTaskError(f"tasks are numbers, such as [42], not {tasks!r}")
    several = tasks if isinstance(tasks, Iterable) else [tasks]
    found = list(dict.fromkeys(map(check_task, several)))
    if not found:
        raise InvalidTaskError("no task is named: give one or more, such as [42]")
    return found


TASK = Kind("TASK", f"a task id from 0 to {MAX_TASK}", int, check_task, int)
"""A task id as a setting."""
TASKS = Kind(
    "TASKS",
    "task ids",
    (list, tuple),
    lambda tasks: tuple(map(check_task, tasks)),
    parse_tasks,
    list,
    lambda tasks: ",".join(map(str, tasks)),
)
"""Task ids as a setting."""
