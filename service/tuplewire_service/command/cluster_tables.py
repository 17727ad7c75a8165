"""The tables of `tuplewire top`: their columns, the formats of cells, and the sort order.

Used by top_command.py. Owns no state. Thread-safe. Design: docs/design/status.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tuplewire_service.command.status_report import time_of
from tuplewire_service.command.viewer.cluster_rows import ClusterRows

_NOT_KNOWN = "-"


def number_of(value: float | None) -> str:
    """Return a count or a rate with separators, small ones with one decimal; `-` for None."""
    if value is None:
        return _NOT_KNOWN
    return f"{value:,.1f}" if 0 < value < 10 and value != int(value) else f"{value:,.0f}"


def share_of(value: float) -> str:
    """Return a share, 0 to 1, in percent; an empty string for 0."""
    return f"{value:.0%}" if value > 0 else ""


def size_of(value: float | None) -> str:
    """Return a number of bytes in B, KiB, MiB or GiB; `-` for None."""
    if value is None:
        return _NOT_KNOWN
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:,.0f} {unit}"
        value /= 1024
    return f"{value:,.1f} GiB"


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _age(value: float) -> str:
    return time_of(value) if value > 0 else ""


def _tasks(value: Sequence[int]) -> str:
    return f"{', '.join(map(str, value[:5]))}{f' and {len(value) - 5} more' if len(value) > 5 else ''}"


def _yes(value: bool) -> str:  # noqa: FBT001 - a cell's value
    return "yes" if value else "no"


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its title, the name of the row's field, and the format of its cells."""

    title: str
    name: str
    shown: Callable[[Any], str] = _text

    def cell(self, row: object) -> str:
        """Return the cell of a row."""
        return self.shown(getattr(row, self.name))


@dataclass(frozen=True, slots=True)
class Table:
    """A table. `name` is its field in ClusterRows; `sort` and, for ties, `then` are column titles."""

    name: str
    columns: Sequence[Column]
    sort: str
    then: str

    def rows(self, cluster: ClusterRows, wanted: str = "") -> list[Any]:
        """Return the rows with `wanted` in a cell, ignoring case, the largest numbers first."""
        rows: Iterable[Any] = getattr(cluster, self.name)
        if wanted:
            low = wanted.lower()
            rows = [row for row in rows if any(low in column.cell(row).lower() for column in self.columns)]
        names = {column.title: column.name for column in self.columns}
        by, then = names[self.sort], names[self.then]
        return sorted(rows, key=lambda row: (*_rank(getattr(row, by)), *_rank(getattr(row, then))))


def _rank(value: Any) -> tuple[int, Any]:
    """Return a sort key: large numbers and long sequences first, then strings, then None."""
    if value is None:
        return 2, 0
    if isinstance(value, str):
        return 1, value
    return 0, -(value if isinstance(value, int | float) else len(value))


TABLES = (
    Table(
        "workers",
        (
            Column("worker", "worker"),
            Column("state", "state"),
            Column("in/s", "accepted_rate", number_of),
            Column("out/s", "acknowledged_rate", number_of),
            Column("pending", "pending", number_of),
            Column("busy", "busy", share_of),
            Column("held up", "backpressured", share_of),
            Column("by", "because"),
            Column("senders", "connected_senders", number_of),
            Column("gone", "remembered_senders", number_of),
            Column("window", "smallest_window", number_of),
            Column("memory", "memory_bytes", size_of),
            Column("version", "version"),
            Column("assignment", "assignment_version"),
            Column("address", "address"),
            Column("problem", "problem"),
        ),
        "worker",
        "address",
    ),
    Table(
        "tasks",
        (
            Column("task", "task"),
            Column("worker", "worker"),
            Column("in/s", "received_rate", number_of),
            Column("out/s", "acknowledged_rate", number_of),
            Column("waiting", "queued_messages", number_of),
            Column("full", "load", share_of),
            Column("oldest", "oldest_seconds", _age),
            Column("blocks", "blocking", share_of),
            Column("whom", "blocked_workers", ", ".join),
            Column("consumed", "subscribed", _yes),
            Column("consumer", "consumer"),
            Column("component", "component"),
        ),
        "blocks",
        "in/s",
    ),
    Table(
        "peers",
        (
            Column("worker", "worker"),
            Column("to", "peer"),
            Column("connected", "connected", _yes),
            Column("in/s", "accepted_rate", number_of),
            Column("acknowledged/s", "acknowledged_rate", number_of),
            Column("pending", "pending", number_of),
            Column("dropped", "dropped", number_of),
            Column("reconnects", "reconnects", number_of),
            Column("congested tasks", "congested_tasks", number_of),
            Column("blocks", "blocking", share_of),
            Column("address", "address"),
        ),
        "pending",
        "in/s",
    ),
    Table(
        "senders",
        (
            Column("worker", "worker"),
            Column("sender", "sender"),
            Column("who", "who"),
            Column("connected", "connected", _yes),
            Column("since", "seconds", _age),
            Column("messages/s", "rate", number_of),
            Column("bytes/s", "bytes_rate", size_of),
            Column("messages", "messages", number_of),
            Column("outstanding", "outstanding_messages", number_of),
            Column("window", "window_messages", number_of),
            Column("waits for", "exhausted_tasks", number_of),
            Column("address", "address"),
        ),
        "messages/s",
        "outstanding",
    ),
    Table(
        "consumers",
        (
            Column("worker", "worker"),
            Column("consumer", "consumer"),
            Column("who", "who"),
            Column("since", "seconds", _age),
            Column("outstanding", "outstanding_messages", number_of),
            Column("tasks", "tasks", _tasks),
            Column("address", "address"),
        ),
        "outstanding",
        "since",
    ),
    Table(
        "losses",
        (
            Column("worker", "worker"),
            Column("what", "what"),
            Column("reason", "reason"),
            Column("messages/s", "rate", number_of),
            Column("in all", "count", number_of),
        ),
        "in all",
        "reason",
    ),
    Table(
        "executors",
        (
            Column("component", "component"),
            Column("worker", "worker"),
            Column("first task", "first_task"),
            Column("tasks", "tasks", number_of),
            Column("in/s", "executed_rate", number_of),
            Column("out/s", "emitted_rate", number_of),
            Column("busy", "busy", share_of),
            Column("held up", "held_up", share_of),
            Column("waiting", "queued_tuples", number_of),
            Column("full", "full", share_of),
            Column("on the way", "pending", number_of),
            Column("failed", "failed", number_of),
            Column("errors", "errors", number_of),
        ),
        "busy",
        "held up",
    ),
)
