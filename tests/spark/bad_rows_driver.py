"""A separate driver with four attempts per task: python bad_rows_driver.py ADDRESS DIRECTORY.

Writes a thousand rows in four partitions; one row has no task. Writes them at least once, exactly once, and
as a stream, which is then started again with badRows=drop. DIRECTORY gets a file for each attempt. Prints the
errors as lines of JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from tuplewire_demos.local_session import local_session

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


def tell(job: str, write: Callable[[], object]) -> None:
    """Print the error that a write raises."""
    try:
        write()
    except PySparkException as error:
        print(json.dumps({"job": job, "error": str(error)}), flush=True)


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
            tell(guarantee, writer.save)
        rows.write.parquet(str(place / "rows"))
        for policy in ("fail", "drop"):
            files = spark.readStream.schema(rows.schema).parquet(str(place / "rows"))
            stream = noted(files, place, policy).writeStream.format("tuplewire").trigger(availableNow=True)
            stream.options(address=address, topology="spark", badRows=policy)
            query = stream.option("checkpointLocation", str(place / "checkpoint")).start()
            tell(policy, query.awaitTermination)


if __name__ == "__main__":
    main(*sys.argv[1:])
