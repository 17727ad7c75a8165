"""The lines of a file as a DataFrame, and a tally of bad lines. Used by the flights demo. Not thread-safe."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from tuplewire_demos.input import SHOWN_CHARACTERS, SHOWN_ROWS, SkippedRow, SkippedRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

_INDEX_BITS = 33  # the low bits of monotonically_increasing_id(): the row's index in its partition


def read_lines(spark: SparkSession, path: Path) -> DataFrame:
    """Return the lines of a file: `id`, for skipped_rows(), and `value`, which may be invalid UTF-8."""
    from pyspark.sql.functions import monotonically_increasing_id

    # Spark uses the name as a pattern.
    name = re.sub(r"([\\*?\[\]{}])", r"\\\1", str(path.absolute()))
    lines = spark.read.text(f"file:{name}")
    return lines.select(monotonically_increasing_id().alias("id"), "value")


class SkipTally:
    """Counts the rows that a spout skips, and keeps the first of them."""

    def __init__(self) -> None:
        self.count = 0
        self.first: list[dict[str, object]] = []

    def split(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows without a `problem`; record the others."""
        problems = rows.column("problem")
        if problems.null_count == len(rows):
            return rows
        bad = rows.filter(problems.is_valid())
        self.count += len(bad)
        for row in bad.slice(0, SHOWN_ROWS - len(self.first)).to_pylist():
            text = row["line"].decode("utf-8", "backslashreplace")[:SHOWN_CHARACTERS]
            self.first.append({"id": row["id"], "problem": row["problem"], "text": text})
        return rows.filter(problems.is_null())


REPORT = pa.schema(
    [
        ("source", pa.int32()),
        ("messages", pa.int64()),
        ("crossed", pa.int64()),
        ("rows", pa.int64()),
        ("seconds", pa.float64()),
        ("skipped", pa.int64()),
        ("first", pa.list_(pa.struct([("id", pa.int64()), ("problem", pa.string()), ("text", pa.string())]))),
    ]
)
"""The schema of the one row that a spout yields at its end."""


def report(tally: SkipTally, **numbers: float) -> pa.RecordBatch:
    """Return a spout's report. numbers: the other columns of REPORT.

    messages: sent, without end marks. crossed: messages to tasks of other workers. rows: in all messages.
    seconds: the time to pack and send them, until all were acknowledged.
    """
    row = {**numbers, "skipped": tally.count, "first": tally.first}
    return pa.RecordBatch.from_pylist([row], REPORT)


def skipped_rows(lines: DataFrame, reports: Sequence[Row]) -> SkippedRows:
    """Combine the spouts' tallies. If there are bad rows, read the file again for their line numbers."""
    from pyspark.sql.functions import spark_partition_id

    first = sorted((row for report in reports for row in report["first"]), key=lambda row: row["id"])
    first = first[:SHOWN_ROWS]
    before: dict[int, int] = {}
    if first:
        partitions = lines.groupBy(spark_partition_id().alias("partition")).count().collect()
        counts: dict[int, int] = {row["partition"]: row["count"] for row in partitions}
        total = 0
        for partition in range(max(counts) + 1):
            before[partition] = total
            total += counts.get(partition, 0)
    return SkippedRows(
        sum(report["skipped"] for report in reports),
        [
            SkippedRow(
                before[row["id"] >> _INDEX_BITS] + (row["id"] & (1 << _INDEX_BITS) - 1) + 1,
                row["problem"],
                row["text"],
            )
            for row in first
        ],
    )
