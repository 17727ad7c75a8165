"""The rows of bench-kafka's table: their measurements, comparisons and targets."""

from __future__ import annotations

from rows import Row
from spark_rows import SparkCell

SIZES = {10: 400_000, 100: 400_000, 10_000: 8_000}
"""Bytes of a message -> number of rows."""
MESSAGES = 25
"""Messages through a query in each round."""
QUICK_SHARE = 10
LATENCY = "latency"


def _pair(title: str, verb: str, times: int = 1, clock: str = "seconds") -> tuple[SparkCell, SparkCell]:
    """Return a measurement of Tuplewire, and the same of Kafka."""
    return (
        SparkCell(title, verb, clock=clock, rows=times),
        SparkCell("Kafka", verb, "kafka", clock=clock, rows=times),
    )


def _write(title: str, times: int = 1, **acks: str) -> SparkCell:
    return SparkCell(title, "write", "kafka" if acks else "tuplewire", acks, rows=times)


_WRITE, _ALL = _write("at least once"), _write("Kafka, acks=all", acks="all")
_ONCE = SparkCell("exactly once", "write", options={"deliveryGuarantee": "exactlyOnce"}, rows=1)
"""It counts only one attempt of each partition."""
_DROP = SparkCell("a sink in Python that drops it", "drop", "", rows=1)
_NOOP = SparkCell("Spark's noop sink", "noop", "", rows=1)
_READ, _READ_KAFKA = _pair("batch read", "read")
_STREAM, _STREAM_KAFKA = _pair("streaming read", "stream")
_LONG, _LONG_KAFKA = _pair("streaming read", "stream", 4)
_BATCHES, _BATCHES_KAFKA = _pair("micro-batches alone", "stream", clock="batch_seconds")
_THROUGH, _THROUGH_KAFKA = _pair("one through a query", LATENCY)

ROWS: tuple[Row[SparkCell], ...] = (
    Row("write", "write", _WRITE, {_ALL: 2.0, _write("Kafka, acks=1", acks="1"): None}),
    Row(
        "bulk",
        "write, four times the rows",
        _write("at least once", 4),
        {_write("Kafka, acks=all", 4, acks="all"): 2.0},
    ),
    Row("once", "write, exactly once", _ONCE, {_ALL: None, _WRITE: None}),
    Row("sink", "write", _WRITE, {_DROP: 0.9, _NOOP: None}),
    Row("read", "batch read", _READ, {_READ_KAFKA: 1.5}),
    Row("stream", "streaming read", _STREAM, {_STREAM_KAFKA: 1.2}),
    Row("backlog", "streaming read, four times the rows", _LONG, {_LONG_KAFKA: 1.2}),
    Row("batches", "streaming read, its micro-batches", _BATCHES, {_BATCHES_KAFKA: 1.2}),
    Row(LATENCY, "one message through a query", _THROUGH, {_THROUGH_KAFKA: {50: 0.4}}, (50, 90)),
)


def amount(cell: SparkCell, size: int, *, quick: bool) -> int:
    """Return the number of messages of a trial."""
    if cell.verb == LATENCY:
        return MESSAGES // 2 if quick else MESSAGES
    return SIZES[size] * cell.rows // (QUICK_SHARE if quick else 1)


def sized(row: Row[SparkCell], size: int) -> Row[SparkCell]:
    """Return a row with the size of its messages in its name and title."""
    shown = f"{size} B" if size < 1000 else f"{size // 1000} KB"
    return Row(f"{row.name}/{size}", f"{row.title}, {shown}", row.cell, row.against, row.percentiles)
