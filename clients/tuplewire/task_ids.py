"""Lists of tasks as people write them: `1,2,10-19`."""

from __future__ import annotations

import re

from tuplewire.errors import MAX_TASK, ConfigError
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
