"""The options of the format `tuplewire`: strings from the user, checked, as frozen values.

They are written like those of Spark's Kafka connector, and case does not matter.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tuplewire.channel import resolve_address, resolve_topology
from tuplewire.errors import MAX_TASK, ConfigError
from tuplewire.group import check_task

_MAX_TASKS = 100_000
_SPARKS_OWN = ("checkpointlocation", "queryname")
"""What Spark passes on of its own options."""


class GroupingName(enum.StrEnum):
    """How a written row's task is chosen. Source: Storm's stream groupings."""

    DIRECT = "direct"
    """By the column `task`."""
    FIELDS = "fields"
    """By the column `key`, among the option `tasks`: equal keys go to one task, whoever writes them."""
    SHUFFLE = "shuffle"
    """In turn among the option `tasks`."""
    LOAD_AWARE_SHUFFLE = "loadAwareShuffle"
    """Among the option `tasks`, by the load that they report."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What to read, and how.

    address: of any worker of the topology. tasks: those to read. timeout: seconds without an answer after
    which it fails. max_messages, max_bytes: of a micro-batch, all tasks together; None: no bound.
    fail_on_data_loss: whether what is gone for good fails the query.
    """

    address: str
    topology: str
    tasks: tuple[int, ...]
    timeout: float
    max_messages: int | None
    max_bytes: int | None
    fail_on_data_loss: bool


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Where and how to write.

    address: None: that of TUPLEWIRE_ADDRESS, where the writing happens. tasks: to choose from; empty where
    the rows name theirs. source: the sending task, if it is one. timeout: seconds for which a full queue or
    an absent worker is waited for. atomic: nothing of a batch write is sent before all of it is computed.
    """

    address: str | None
    topology: str
    grouping: GroupingName
    tasks: tuple[int, ...]
    source: int | None
    timeout: float
    atomic: bool


def source_options(options: Mapping[str, str]) -> SourceOptions:
    """Read the options of a `read` or `readStream`.

    Raises ConfigError, which lists the right options, for an unknown one, a wrong value or a missing one.
    """
    given = _Given(options, _READ_OPTIONS, "reading")
    return SourceOptions(
        address=given.take("address", resolve_address, None) or resolve_address(None),
        topology=given.take("topology", str, None) or resolve_topology(None),
        tasks=given.take("tasks", parse_tasks),
        timeout=given.take("timeout", _seconds, 30.0),
        max_messages=given.take("maxMessagesPerTrigger", _count, None),
        max_bytes=given.take("maxBytesPerTrigger", _count, None),
        fail_on_data_loss=given.take("failOnDataLoss", _flag, default=True),
    )


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Read the options of a `write` or `writeStream`.

    Raises ConfigError, which lists the right options, for an unknown one, a wrong value or a missing one.
    """
    given = _Given(options, _WRITE_OPTIONS, "writing")
    grouping = given.take("grouping", _grouping, GroupingName.DIRECT)
    chooses = grouping is not GroupingName.DIRECT
    if not chooses and "tasks" in given:
        raise ConfigError(
            "the option tasks is for a grouping that chooses among them, and grouping is direct: set "
            "grouping to fields, shuffle or loadAwareShuffle, or leave tasks out"
        )
    return SinkOptions(
        address=given.take("address", resolve_address, None),
        topology=given.take("topology", str, None) or resolve_topology(None),
        grouping=grouping,
        tasks=given.take("tasks", parse_tasks) if chooses else (),
        source=given.take("source", lambda text: check_task(int(text)), None),
        timeout=given.take("timeout", _seconds, 60.0),
        atomic=given.take("atomic", _flag, default=False),
    )


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


_REQUIRED: Any = object()

_COMMON = {
    "address": "a worker, host:port or unix:///path; default: TUPLEWIRE_ADDRESS",
    "topology": "default: TUPLEWIRE_TOPOLOGY, or default",
    "timeout": "seconds to wait for a worker that does not answer, or has no room",
}
_READ_OPTIONS = {
    **_COMMON,
    "tasks": "the tasks to read, like 1,2,10-19; required",
    "maxMessagesPerTrigger": "the most messages of a micro-batch",
    "maxBytesPerTrigger": "about the most payload bytes of a micro-batch",
    "failOnDataLoss": "true (default) or false: go on when messages are gone for good",
}
_WRITE_OPTIONS = {
    **_COMMON,
    "grouping": ", ".join(GroupingName) + "; default: direct, by the column task",
    "tasks": "the tasks that a grouping chooses from, like 1,2,10-19",
    "source": "the task that the messages come from",
    "atomic": "true or false (default): send nothing of a batch write before all of it is computed",
}


class _Given:
    """What a user has set, read one by one."""

    def __init__(self, options: Mapping[str, str], known: Mapping[str, str], purpose: str) -> None:
        self._values = {name.lower(): value for name, value in options.items()}
        self._known = "".join(f"\n  {name}: {meaning}" for name, meaning in sorted(known.items()))
        self._purpose = purpose
        names = {name.lower() for name in known}
        for name in options:
            if name.lower() not in names and name.lower() not in _SPARKS_OWN:
                raise ConfigError(f"unknown option {name!r}; {self._right()}")

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._values

    def _right(self) -> str:
        return f"the options for {self._purpose} are:{self._known}"

    def take(self, name: str, parse: Callable[[str], Any], default: Any = _REQUIRED) -> Any:
        text = self._values.get(name.lower())
        if text is None:
            if default is _REQUIRED:
                raise ConfigError(f"the option {name} is missing; {self._right()}")
            return default
        try:
            return parse(text)
        except ValueError as error:  # ours are, too
            raise ConfigError(f"option {name}={text!r}: {error}; {self._right()}") from error


def _seconds(text: str) -> float:
    if not 0 < (value := float(text)) < math.inf:
        raise ConfigError("it is a number of seconds more than 0")
    return value


def _count(text: str) -> int:
    if (value := int(text)) < 1:
        raise ConfigError("it is a whole number more than 0")
    return value


def _flag(text: str) -> bool:
    try:
        return {"true": True, "false": False}[text.lower()]
    except KeyError:
        raise ConfigError("it is true or false") from None


def _grouping(text: str) -> GroupingName:
    for name in GroupingName:
        if name.lower() == text.lower():
            return name
    raise ConfigError(f"it is one of {', '.join(GroupingName)}")
