"""The options of the format `tuplewire`: strings from the user, checked, as frozen values.

Their names follow Spark's Kafka connector, in any case. Used by the format, the readers and the writers. Owns
the definitions of all options. Thread-safe. Design: docs/design/rows-and-memory.md.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from tuplewire.errors import MAX_TASK, ConfigError
from tuplewire.identity.credentials import Credentials
from tuplewire.settings.addresses import resolve_address, resolve_addresses, resolve_topology
from tuplewire.settings.config import SessionSettings
from tuplewire.settings.settings import (
    ANY_TEXT,
    BOOLEAN,
    KEY_PREFIX,
    REQUIRED,
    SECONDS,
    Kind,
    Settings,
    choice,
    integer,
    setting,
    setting_like,
    settings_of,
    unknown_error,
)
from tuplewire.spark.features import LIMIT_OPTIONS
from tuplewire.values.group import check_task
from tuplewire.values.task_ids import TASKS, TaskRanges, parse_tasks_or_ranges

_SPARK_OPTIONS = ("checkpointlocation", "queryname")
"""Spark's own options that it passes to a format."""
_ADDRESS = Kind("ADDRESS", "host:port or unix:///path, or several with commas", str, resolve_addresses)
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d)", re.ASCII | re.IGNORECASE)


def _parse_time(text: str) -> float:
    match = _TIME.fullmatch(text.strip())
    if not match:
        raise ValueError
    return float(match[1]) * _UNITS[match[2].lower()]


_DELAY = Kind(
    "TIME",
    "a time with its unit, like 500ms, 30s, 15m or 1h, more than 0",
    (int, float),
    SECONDS.convert,
    _parse_time,
    write=lambda seconds: f"{seconds}s",
)


class StartingOffset(enum.StrEnum):
    """The start of a new query in a task."""

    EARLIEST = "earliest"
    """Before all unacknowledged messages."""
    LATEST = "latest"
    """After all queued messages, which are discarded."""


def _check_starts(value: Any) -> Any:
    if isinstance(value, str):
        return StartingOffset(value)
    return {check_task(int(task)): StartingOffset(start) for task, start in value.items()}


def _parse_starts(text: str) -> Any:
    text = text.strip().lower()
    return json.loads(text) if text.startswith("{") else text


_STARTS = Kind(
    "WHERE",
    'earliest, latest, or JSON with one of these for tasks, like {"1": "latest"}; earliest for the others',
    (str, dict),
    _check_starts,
    _parse_starts,
    write=lambda value: value if isinstance(value, str) else json.dumps(value),
)

_TASKS = replace(
    TASKS,
    allowed="task ids, 100- for all from 100 on, or * for all",
    types=(list, tuple, TaskRanges),
    convert=lambda tasks: tasks if isinstance(tasks, TaskRanges) else TASKS.convert(tasks),
    parse=parse_tasks_or_ranges,
)
_OPTION_HINTS = {
    "path": "load() and save() take no path: name workers in the option address, and tasks in tasks",
    "minpartitions": "several Spark tasks cannot read one task in order, so each task that has messages has "
    "one Spark task. For more at a time spread the messages over more tasks, with more in the option tasks "
    "and a grouping that chooses among them; or spread the rows after reading, with .repartition(...)",
    "maxoffsetspertrigger": "it is called maxMessagesPerTrigger here",
    "minoffsetspertrigger": "it is called minMessagesPerTrigger here",
    "subscribe": "it is called tasks here, like 1,2,10-19",
    "subscribepattern": "it is called tasks here, like 100- or *",
    "assign": "it is called tasks here, like 1,2,10-19",
}
"""The hints for options of other formats, such as Spark's Kafka connector."""


class GroupingName(enum.StrEnum):
    """The choice of a written row's task. Source: Storm's stream groupings."""

    DIRECT = "direct"
    """By the column `task`."""
    FIELDS = "fields"
    """By the column `key`, among the option `tasks`: equal keys have the same task in every writer."""
    SHUFFLE = "shuffle"
    """In turn among the option `tasks`."""
    LOAD_AWARE_SHUFFLE = "loadAwareShuffle"
    """Among the option `tasks`, by the load that they report."""


class DeliveryGuarantee(enum.StrEnum):
    """The number of times that consumers see a row if Spark runs a task again."""

    EXACTLY_ONCE = "exactlyOnce"
    """Once: no row is visible before the whole write or micro-batch is computed."""
    AT_LEAST_ONCE = "atLeastOnce"
    """At least once: rows are sent from the tasks that compute them."""


FAIL, DROP = "fail", "drop"
"""The policies for rows that cannot be sent; with a task ID instead, they are sent to that task."""


def _parse_bad_rows(text: str) -> str | int:
    word = text.strip().lower()
    return int(word) if word.isdecimal() and word.isascii() else word


def _check_bad_rows(value: str | int) -> str | int:
    if isinstance(value, int):
        return check_task(value)
    if value not in {FAIL, DROP}:
        raise ValueError
    return value


_BAD_ROWS = Kind("POLICY", "fail, drop or a task id", (str, int), _check_bad_rows, _parse_bad_rows, write=str)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ConnectionOptions(Settings):
    """Client settings from options with the prefix `tuplewire.`: see Credentials and SessionSettings.

    Settings of Credentials override the environment of the process that connects.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def default_key(cls, name: str) -> str:
        """Return the name of an option, such as badRows."""
        first, *others = name.split("_")
        return first + "".join(map(str.capitalize, others))

    def credentials(self) -> Credentials:
        """Return the credentials, completed by the current environment of this process."""
        names = settings_of(Credentials)
        return Credentials.from_environment(flags={k: v for k, v in self.settings.items() if k in names})

    def session_settings(self, worker_limit_bytes: int) -> dict[str, Any]:
        """Return the settings of a session. worker_limit_bytes: the worker's limit for a message."""
        known = settings_of(SessionSettings)
        values = {name: value for name, value in self.settings.items() if name in known}
        largest = min(values.get("max_message_bytes", worker_limit_bytes), worker_limit_bytes)
        # The buffer needs space for at least one message of the maximum size.
        buffer_bytes = max(largest, known["max_pending_bytes"].default)
        return {"max_pending_bytes": buffer_bytes, **values, "max_message_bytes": largest}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions(_ConnectionOptions):
    """The options of a read or readStream."""

    address: str = setting(
        _ADDRESS,
        REQUIRED,
        "address of any worker of the topology, or of several workers (default: TUPLEWIRE_ADDRESS)",
    )
    topology: str = setting(
        ANY_TEXT, REQUIRED, "name of the topology (environment: TUPLEWIRE_TOPOLOGY; default: default)"
    )
    tasks: tuple[int, ...] | TaskRanges = setting(
        _TASKS,
        REQUIRED,
        "tasks to read, such as 1,2,10-19; required. 100- and * include tasks that are assigned later",
    )
    timeout: float = setting(SECONDS, 30.0, "time without an answer from a worker after which the read fails")
    max_messages_per_trigger: int | None = setting(
        integer(), None, "maximum messages in a micro-batch, for all tasks (default: no limit)"
    )
    max_bytes_per_trigger: int | None = setting(
        integer(), None, "approximate maximum number of payload bytes in a micro-batch"
    )
    min_messages_per_trigger: int | None = setting(
        integer(),
        None,
        "minimum number of messages in a micro-batch, for all tasks together; fewer wait for more messages",
    )
    max_trigger_delay: float = setting(
        _DELAY, 900, "longest wait of fewer messages than minMessagesPerTrigger"
    )
    starting_offsets: StartingOffset | dict[int, StartingOffset] = setting(
        _STARTS, StartingOffset.EARLIEST, "start of a new query; latest discards the messages in the queue"
    )
    include_headers: bool = setting(BOOLEAN, False, "true: add the column headers")
    fail_on_data_loss: bool = setting(
        BOOLEAN, True, "false: continue the query if messages are permanently lost"
    )

    def starting_offset(self, task: int) -> StartingOffset:
        """Return the start of a new query in a task."""
        starts = self.starting_offsets
        return starts if isinstance(starts, str) else starts.get(task, StartingOffset.EARLIEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions(_ConnectionOptions):
    """The options of a write or writeStream. address: None: resolved in the process that writes."""

    address: str | None = setting(
        _ADDRESS, None, "address of a worker, as for reading (default: TUPLEWIRE_ADDRESS)"
    )
    topology: str = setting_like(SourceOptions, "topology")
    grouping: GroupingName = setting(
        choice(GroupingName),
        GroupingName.DIRECT,
        "choice of a row's task; direct: the task in the column task",
    )
    tasks: tuple[int, ...] = setting(TASKS, (), "tasks that the grouping chooses from, such as 1,2,10-19")
    source: int | None = setting(integer(0, MAX_TASK), None, "source task of the messages")
    timeout: float = setting(SECONDS, 60.0, "longest wait for a full queue or an absent worker")
    delivery_guarantee: DeliveryGuarantee | None = setting(
        choice(DeliveryGuarantee),
        None,
        "number of times that consumers see a row if Spark runs a task again (default: exactlyOnce for "
        "streams, atLeastOnce for writes)",
    )
    bad_rows: str | int = setting(
        _BAD_ROWS,
        FAIL,
        "handling of rows that cannot be sent: fail the write, drop the rows, or send them as JSON to a task",
    )


def source_options(options: Mapping[str, str], *, streaming: bool = True) -> SourceOptions:
    """Parse the options of a `readStream`, or of a `read`, which does not accept the options for streams.

    Raises ConfigError, with a list of the valid options, for an unknown, wrong or missing one.
    """
    with _options_in_errors(SourceOptions, "reading"):
        values = _parse_options(SourceOptions, options)
        _require_tasks(values)
        for name, each in settings_of(SourceOptions).items():
            if not streaming and name in values and each.key in (*LIMIT_OPTIONS, "startingOffsets"):
                raise ConfigError(f"the option {each.key} is for readStream; a read has all queued messages")
        values["address"] = values.get("address") or resolve_address(None)
        parsed = SourceOptions(**values)
        least, most = parsed.min_messages_per_trigger, parsed.max_messages_per_trigger
        if least and most and least > most:
            raise ConfigError(
                f"minMessagesPerTrigger is {least}, more than maxMessagesPerTrigger, which is {most}: a "
                "micro-batch cannot have both"
            )
        if isinstance(parsed.starting_offsets, dict) and (
            others := [task for task in sorted(parsed.starting_offsets) if task not in parsed.tasks]
        ):
            raise ConfigError(f"startingOffsets names task {others[0]}, which is not in the option tasks")
        return parsed


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Parse the options of a `write` or `writeStream`, with the errors of source_options()."""
    with _options_in_errors(SinkOptions, "writing"):
        values = _parse_options(SinkOptions, options)
        if values.get("grouping", GroupingName.DIRECT) is not GroupingName.DIRECT:
            _require_tasks(values)
        elif "tasks" in values:
            raise ConfigError(
                "the option tasks is for a grouping that chooses among them, and grouping is direct: set "
                "grouping to fields, shuffle or loadAwareShuffle, or leave tasks out"
            )
        return SinkOptions(**values)


_CLIENT_SETTINGS = {**settings_of(Credentials), **settings_of(SessionSettings)}


def _parse_options(kind: type[Settings], options: Mapping[str, str]) -> dict[str, Any]:
    """Return the options that the user has set, in any case, and the topology."""
    known = {each.key.lower(): each for each in settings_of(kind).values()}
    settings: dict[str, Any] = {}
    values: dict[str, Any] = {"settings": settings}
    for name, text in options.items():
        key = name.lower()
        if (each := known.get(key)) is not None:
            values[each.name] = each.check(text, f"option {each.key}", text=True)
        elif key.startswith(KEY_PREFIX):
            setting = key.removeprefix(KEY_PREFIX)
            if setting not in _CLIENT_SETTINGS:
                raise unknown_error(f"option {name!r}", setting, list(_CLIENT_SETTINGS))
            settings[setting] = _CLIENT_SETTINGS[setting].check(text, f"option {name}", text=True)
        elif key not in _SPARK_OPTIONS:
            # All hints except the one for `path` are about reading.
            hint = _OPTION_HINTS.get(key) if kind is SourceOptions or name == "path" else None
            raise ConfigError(f"unknown option {name!r}" + (f" ({hint})" if hint else ""))
    values["topology"] = resolve_topology(values.get("topology"))
    return values


def _require_tasks(values: Mapping[str, Any]) -> None:
    if "tasks" not in values:
        raise ConfigError("the option tasks is missing: set it, like 1,2,10-19")


@contextmanager
def _options_in_errors(kind: type[Settings], purpose: str) -> Iterator[None]:
    """Add a list of the valid options to a ConfigError."""
    try:
        yield
    except ConfigError as error:
        known = sorted(settings_of(kind).values(), key=lambda each: each.key)
        lines = "".join(f"\n  {each.key}: {each.kind.allowed}; {each.help}" for each in known)
        lines += (
            f"\n  {KEY_PREFIX}NAME: a setting of the client, such as tls_ca, token_file or max_message_bytes"
        )
        raise ConfigError(f"{error}; the options for {purpose} are:{lines}") from error
