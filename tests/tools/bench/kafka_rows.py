"""The rows of bench-kafka's table: their measurements, comparisons and targets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from report import RATE, Line, compared, percentile

EXACTLY_ONCE = {"deliveryGuarantee": "exactlyOnce"}
"""The options of a write that counts only one attempt of each partition."""
SIZES = {10: 400_000, 100: 400_000, 10_000: 8_000}
"""Bytes of a message -> number of rows."""
MESSAGES = 25
"""Messages through a query in each round."""
QUICK_SHARE = 10


@dataclass(frozen=True)
class Cell:
    """A measurement of each round: a request to the process with Spark."""

    title: str
    verb: str
    peer: str = ""
    options: dict[str, str] = field(default_factory=dict, hash=False)
    clock: str = "seconds"
    """The field of the answer that contains its time."""
    times: int = 1
    """Factor for the number of rows."""


_WRITE = Cell("at least once", "write", "tuplewire")
_ONCE = Cell("exactly once", "write", "tuplewire", EXACTLY_ONCE)
_ALL = Cell("Kafka, acks=all", "write", "kafka", {"acks": "all"})
_BULK = Cell("at least once", "write", "tuplewire", times=4)
_BULK_ALL = Cell("Kafka, acks=all", "write", "kafka", {"acks": "all"}, times=4)
_ONE = Cell("Kafka, acks=1", "write", "kafka", {"acks": "1"})
_DROP = Cell("a sink in Python that drops it", "drop")
_NOOP = Cell("Spark's noop sink", "noop")
_READ, _READ_KAFKA = Cell("batch read", "read", "tuplewire"), Cell("Kafka", "read", "kafka")
_STREAM, _STREAM_KAFKA = Cell("streaming read", "stream", "tuplewire"), Cell("Kafka", "stream", "kafka")
_LONG = Cell("streaming read", "stream", "tuplewire", times=4)
_LONG_KAFKA = Cell("Kafka", "stream", "kafka", times=4)
_BATCHES = Cell("micro-batches alone", "stream", "tuplewire", clock="batch_seconds")
_BATCHES_KAFKA = Cell("Kafka", "stream", "kafka", clock="batch_seconds")
LATENCY = "latency"
_THROUGH, _THROUGH_KAFKA = Cell("one through a query", LATENCY, "tuplewire"), Cell("Kafka", LATENCY, "kafka")
PERCENTILES: dict[int, float | None] = {50: 0.4, 90: None}
"""Percentile of the times through a query -> maximum ratio."""

ROWS: dict[str, tuple[str, Cell, dict[Cell, float | None]]] = {
    "write": ("write", _WRITE, {_ALL: 2.0, _ONE: None}),
    "bulk": ("write, four times the rows", _BULK, {_BULK_ALL: 2.0}),
    "once": ("write, exactly once", _ONCE, {_ALL: None, _WRITE: None}),
    "sink": ("write", _WRITE, {_DROP: 0.9, _NOOP: None}),
    "read": ("batch read", _READ, {_READ_KAFKA: 1.5}),
    "stream": ("streaming read", _STREAM, {_STREAM_KAFKA: 1.2}),
    "backlog": ("streaming read, four times the rows", _LONG, {_LONG_KAFKA: 1.2}),
    "batches": ("streaming read, its micro-batches", _BATCHES, {_BATCHES_KAFKA: 1.2}),
    LATENCY: ("one message through a query", _THROUGH, {_THROUGH_KAFKA: None}),
}
"""Row -> its title, its measurement, and the measurements it is compared with, with the target ratios."""


def name_of(size: int) -> str:
    """Return a size as in the documentation."""
    return f"{size} B" if size < 1000 else f"{size // 1000} KB"


@dataclass(frozen=True, slots=True)
class Plan:
    """The rows, the sizes and the number of rounds to measure. quick: with fewer messages."""

    rows: tuple[str, ...]
    sizes: tuple[int, ...]
    rounds: int
    quick: bool

    def amount(self, cell: Cell, size: int) -> int:
        """Return the number of messages of a trial."""
        whole = MESSAGES if cell.verb == LATENCY else SIZES[size] * cell.times
        return whole // (QUICK_SHARE if self.quick and cell.verb != LATENCY else 2 if self.quick else 1)

    def cells(self) -> list[Cell]:
        """Return the measurements of each round, without duplicates."""
        asked = [cell for row in self.rows for cell in (ROWS[row][1], *ROWS[row][2])]
        return list(dict.fromkeys(asked))


def lines(plan: Plan, size: int, rounds: list[dict[Cell, Any]]) -> Iterable[Line]:
    """Yield the table's lines for a size: rates, or lists of milliseconds, of each round."""
    for row in plan.rows:
        title, ours, beside = ROWS[row]
        name, title = f"{row}/{size}", f"{title}, {name_of(size)}"
        for other, target in beside.items():
            pairs = [(each[ours], each[other]) for each in rounds]
            if row != LATENCY:
                yield compared(name, title, RATE, pairs, other.title, target=target)
                continue
            for percent, limit in PERCENTILES.items():
                times = [(percentile(mine, percent), percentile(others, percent)) for mine, others in pairs]
                yield compared(name, f"{title}: p{percent}", "ms", times, other.title, target=limit)
