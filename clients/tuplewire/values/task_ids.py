"""Lists of task ids, as programs and users write them: `[1, 2]` and `1,2,10-19`.

Used by clients, settings, Spark's options, the command line and permissions. Owns no state. Thread-safe.
Design: docs/design/identity.md for permissions by task.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self, SupportsIndex

from tuplewire.errors import MAX_TASK, ConfigError, InvalidTaskError
from tuplewire.settings.settings import Kind
from tuplewire.values.group import check_task

_MAX_RANGE_TASKS = 100_000
_RANGE_PATTERN = re.compile(r"([0-9]{1,10})(?:(-)([0-9]{1,10})?)?")


def parse_tasks(text: str) -> tuple[int, ...]:
    """Parse task ids and ranges such as `1,2,10-19`, in their order. Raise ConfigError for other text."""
    tasks: dict[int, None] = {}
    for part in str(text).split(","):
        match = re.fullmatch(r"\s*(\d{1,10})(?:\s*-\s*(\d{1,10}))?\s*", part, re.ASCII)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        # A range is expanded to all its ids, so its length is bounded.
        if not first <= last <= MAX_TASK or last - first >= _MAX_RANGE_TASKS:
            raise ConfigError(f"task ids are written like 1,2,10-19, from 0 to {MAX_TASK}, not {text!r}")
        tasks.update(dict.fromkeys(range(first, last + 1)))
    return tuple(tasks)


@dataclass(frozen=True, slots=True)
class TaskRanges:
    """Task ids as ordered ranges with gaps between them. `starts` and `ends` are inclusive."""

    starts: tuple[int, ...]
    ends: tuple[int, ...]

    @classmethod
    def of(cls, ranges: Iterable[tuple[int, int]]) -> Self:
        """Sort ranges, and merge ranges that overlap or are adjacent."""
        joined: list[list[int]] = []
        for start, end in sorted(ranges):
            if joined and start <= joined[-1][1] + 1:
                joined[-1][1] = max(end, joined[-1][1])
            else:
                joined.append([start, end])
        return cls(tuple(start for start, _ in joined), tuple(end for _, end in joined))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `1,2,10-19,100-` (100 and above), or `*` for all tasks. Raise ConfigError for other text."""
        if text.strip() == "*":
            return cls((0,), (MAX_TASK,))
        ranges = []
        for part in filter(None, (part.strip() for part in text.split(","))):
            match = _RANGE_PATTERN.fullmatch(part)
            start = int(match[1]) if match else 1
            end = int(match[3] or (MAX_TASK if match[2] else start)) if match else 0
            if not start <= end <= MAX_TASK:
                raise ConfigError(f"tasks are written like 1,2,10-19,100-, or *, not {text!r}")
            ranges.append((start, end))
        return cls.of(ranges)

    def __contains__(self, task: object) -> bool:
        index = bisect_right(self.starts, task) - 1 if isinstance(task, int) else -1
        return isinstance(task, int) and index >= 0 and task <= self.ends[index]

    @property
    def contains_all(self) -> bool:
        """True if the ranges contain every task id."""
        return self.ends == (MAX_TASK,) and self.starts == (0,)


def parse_tasks_or_ranges(text: str) -> tuple[int, ...] | TaskRanges:
    """Parse the text like parse_tasks(). Return TaskRanges if a part is `*` or open, such as `100-`."""
    parts = [part.strip() for part in text.split(",")]
    open_ = any(part == "*" or part.endswith("-") for part in parts)
    return TaskRanges.parse(text) if open_ else parse_tasks(text)


def format_tasks(tasks: Iterable[int]) -> str:
    """Return sorted task ids and ranges, such as `1, 3-9`, at most ten; `...` stands for the others."""
    merged = TaskRanges.of((task, task) for task in tasks)
    ranges = zip(merged.starts, merged.ends, strict=True)
    shown = [f"{start}" if start == end else f"{start}-{end}" for start, end in ranges]
    return ", ".join([*shown[:10], "..."] if len(shown) > 10 else shown)


def check_tasks(tasks: SupportsIndex | Iterable[SupportsIndex]) -> list[int]:
    """Return task ids as a list without duplicates. Raise InvalidTaskError if one is invalid, or for none."""
    if isinstance(tasks, str | bytes):
        raise InvalidTaskError(f"tasks are numbers, such as [42], not {tasks!r}")
    found = list(dict.fromkeys(map(check_task, tasks if isinstance(tasks, Iterable) else [tasks])))
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
