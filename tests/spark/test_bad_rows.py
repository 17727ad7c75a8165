"""A row that cannot be sent, with four attempts per Spark task.

The driver writes a thousand rows in four partitions; one row has no task. It writes them at least once,
exactly once, and as a stream, which is then started again with badRows=drop. Each attempt makes a file.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from helpers.drivers import report, run_driver
from helpers.topology import metric, queued
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from tuplewire_demos.local_session import local_session

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]

TASKS = {0: [1], 1: [2]}
GUARANTEES = ("atLeastOnce", "exactlyOnce")
BAD = 777
ROWS = 1000


def noted(frame: DataFrame, place: Path, job: str) -> DataFrame:
    """Return the same rows, and record each attempt that computes some of them."""

    def note(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        (place / f"{job}-{context.partitionId()}-{context.taskAttemptId()}").touch()
        yield from batches

    return frame.mapInArrow(note, frame.schema)


def attempt(job: str, write: Callable[[], object]) -> None:
    """Report the error that a write raises."""
    try:
        write()
    except PySparkException as error:
        report(job, str(error))


def test_a_bad_row_is_named_and_not_tried_again(launch: Any, tmp_path: Path) -> None:
    """Each partition is computed once, and nothing bad is sent; a stream continues with badRows=drop."""
    with launch("spark", TASKS) as running:
        errors = run_driver(__file__, running.endpoints[0].address, tmp_path)
        assert set(errors) == {"atLeastOnce", "exactlyOnce", "fail"}
        for job in GUARANTEES:
            assert "BadRowsError: row 27 of partition 3: the task is null (task None" in errors[job]
        assert "BadRowsError: row " in errors["fail"]
        attempts = Counter(each.name.rpartition("-")[0] for each in tmp_path.glob("*-*-*"))
        assert set(attempts.values()) == {1}, attempts
        assert {f"{job}-{number}" for job in GUARANTEES for number in range(4)} <= set(attempts)
        # Three partitions of 250 rows, at least once, and a stream without one row.
        assert [queued(each, index + 1) for index, each in enumerate(running.endpoints)] == [875, 874]
        staged = [metric(each, 'tuplewire_staged_bytes{place="memory"}') for each in running.endpoints]
        assert staged == [0, 0]


def main(address: str, directory: str) -> None:
    """Run all writes."""
    place = Path(directory)
    with local_session("bad-rows", conf={"spark.master": "local[2,4]"}) as spark:
        rows = spark.range(0, ROWS, 1, 4).selectExpr(
            f"if(id = {BAD}, null, cast(id % 2 + 1 as int)) as task", "cast(id as string) as message"
        )
        for guarantee in ("atLeastOnce", "exactlyOnce"):
            writer = noted(rows, place, guarantee).write.format("tuplewire").mode("append")
            writer.options(address=address, topology="spark", deliveryGuarantee=guarantee)
            attempt(guarantee, writer.save)
        rows.write.parquet(str(place / "rows"))
        for policy in ("fail", "drop"):
            files = spark.readStream.schema(rows.schema).parquet(str(place / "rows"))
            stream = noted(files, place, policy).writeStream.format("tuplewire").trigger(availableNow=True)
            stream.options(address=address, topology="spark", badRows=policy)
            query = stream.option("checkpointLocation", str(place / "checkpoint")).start()
            attempt(policy, query.awaitTermination)


if __name__ == "__main__":
    main(*sys.argv[1:])
