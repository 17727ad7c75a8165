"""A file's lines as a DataFrame, and what is done about bad ones."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from tuplewire_demos.input import SHOWN_CHARACTERS, SHOWN_ROWS, SkippedRow, SkippedRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

_INDEX_BITS = 33


def read_lines(spark: SparkSession, path: Path) -> DataFrame:
    """Return the lines of a file: `id`, from which line numbers come, and `value`, the text.

    Spark reads it in pieces, each a partition. The text may not be UTF-8.
    """
    from pyspark.sql.functions import monotonically_increasing_id

    # Spark takes the name for a pattern.
    name = re.sub(r"([\\*?\[\]{}])", r"\\\1", str(path.absolute()))
    lines = spark.read.text(f"file:{name}")
    return lines.select(monotonically_increasing_id().alias("id"), "value")


class SkipTally:
    """Collects, in a spout, what it leaves out."""

    def __init__(self) -> None:
        self.count = 0
        self.first: list[dict[str, object]] = []

    def split(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows without a `problem`; note `id`, `problem` and `line` of the others."""
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
"""What a spout yields when it has ended: one row of this."""


def report(tally: SkipTally, **numbers: float) -> pa.RecordBatch:
    """Return a spout's one row. numbers: what else REPORT has.

    messages: those it sent, without end marks. crossed: those of them for a task of another worker than its
    own. rows: what was in them. seconds: what it took to pack and send them, until all were acknowledged.
    """
    row = {**numbers, "skipped": tally.count, "first": tally.first}
    return pa.RecordBatch.from_pylist([row], REPORT)


def skipped_rows(lines: DataFrame, reports: Sequence[Row]) -> SkippedRows:
    """Put the spouts' tallies together; with bad rows, reads the file once more to number them."""
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
