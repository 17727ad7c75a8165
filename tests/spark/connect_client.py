"""A program that uses Spark Connect: python connect_client.py REMOTE ADDRESS DIRECTORY.

Sends a thousand rows to tasks 1 and 2, half of them in mapInArrow, streams them to tasks 3 and 4, and from
there in foreachBatch to task 5. Prints the number of rows and of distinct rows in task 5, and the
rows that each of two tasks counts in a team.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from tuplewire import TaskMessageBatch, Team
from tuplewire.spark import ClientHandle, register


def main(remote: str, address: str, directory: str) -> None:
    """Write, stream and read."""
    spark = SparkSession.builder.remote(remote).getOrCreate()
    register(spark)
    where = {"address": address, "topology": "spark"}
    handle = ClientHandle(address, topology="spark")

    def send(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with handle as client:
            for batch in batches:
                client.send(TaskMessageBatch.from_arrow(batch.column("task"), batch.column("message")))
                yield batch.select(["task"])

    def add(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with Team.of_stage([6, 7], address=address, topology="spark") as team:
            total = team.all_reduce(sum(batch.num_rows for batch in batches))
        yield pa.RecordBatch.from_pydict({"rows": [int(total)]})

    def send_batch(frame: DataFrame, _: int) -> None:
        messages = frame.select("message").toArrow()["message"].to_pylist()
        with handle as client:
            client.send(TaskMessageBatch.from_columns([5] * len(messages), messages))

    rows = spark.range(1000).selectExpr("cast(id % 2 + 1 as int) as task", "cast(id as string) as message")
    rows.where("message < '500'").write.format("tuplewire").mode("append").options(**where).save()
    rows.where("message >= '500'").mapInArrow(send, "task int").count()
    checkpoints = Path(directory)
    arrived = spark.readStream.format("tuplewire").options(**where, tasks="1,2").load()
    (
        arrived.selectExpr("task + 2 as task", "message")
        .writeStream.format("tuplewire")
        .options(**where)
        .option("checkpointLocation", str(checkpoints / "sink"))
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )
    passed = spark.readStream.format("tuplewire").options(**where, tasks="3,4").load()
    (
        passed.writeStream.foreachBatch(send_batch)
        .option("checkpointLocation", str(checkpoints / "foreachBatch"))
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )
    frame = spark.read.format("tuplewire").options(**where, tasks="5").load()
    pairs = spark.range(0, 100, 1, 2).mapInArrow(add, "rows long", barrier=True).collect()
    print(frame.count(), frame.select("message").distinct().count(), *(each.rows for each in pairs))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
