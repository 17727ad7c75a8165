"""The process with Spark: DataFrames into tasks and back, the same without Tuplewire, and micro-batches."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from agent import BenchError, serve
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType
from warm_spark import WarmSpark
from workload import MESSAGE_BYTES, TOPOLOGY, WAIT_SECONDS, numbered

from tuplewire.client import Client
from tuplewire.spark import ClientHandle
from tuplewire.values.batch import TaskMessageBatch
from tuplewire_demos.local_session import local_session

CORES = 2
TASKS = (1, 2)
TARGET = 3
WORKER_OF = {1: 0, 2: 1, 3: 1}
"""The index of each task's worker."""
WARM_BATCHES = 3
BATCH_SECONDS = 60.0


def tasks_of_workers() -> dict[int, list[int]]:
    """Return the assignment: the index of each worker and its tasks."""
    return {index: [task for task, at in WORKER_OF.items() if at == index] for index in (0, 1)}


class DropWriter(DataSourceArrowWriter):
    """Receives the rows that Spark passes to Python, and drops them."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Drop one partition."""
        for _ in iterator:
            pass
        return WriterCommitMessage()


class DropSource(DataSource):
    """A sink in Python that drops everything: the minimum cost of such a sink."""

    @classmethod
    def name(cls) -> str:
        """Return its name for .format()."""
        return "drop"

    def writer(self, schema: StructType, overwrite: bool) -> DropWriter:  # noqa: ARG002, FBT001 - Spark's
        """Return the writer."""
        return DropWriter()


class Frames:
    """The measurements with DataFrames; each answer has the seconds of Spark's job."""

    def __init__(self, spark: SparkSession, *addresses: str) -> None:
        self._spark = spark
        by_value: Any = cloudpickle.register_pickle_by_value
        by_value(sys.modules[DropSource.__module__])  # Spark's own processes cannot import it
        spark.dataSource.register(DropSource)
        self._frames: dict[tuple[int, int], DataFrame] = {}
        self._addresses = addresses
        self._where = {"address": addresses[0], "topology": TOPOLOGY}

    def frame(self, rows: int, size: int = MESSAGE_BYTES) -> DataFrame:
        """Return a DataFrame that is already computed, in Spark's memory."""
        if (rows, size) not in self._frames:
            message = f"lpad(cast(id as string), {size}, '0') as message"
            frame = self._spark.range(0, rows, 1, CORES).selectExpr(
                "cast(id % 2 + 1 as int) as task", message
            )
            frame.persist().count()
            self._frames[rows, size] = frame
        return self._frames[rows, size]

    def noop(self, rows: int, size: int = MESSAGE_BYTES) -> dict[str, Any]:
        """Write a DataFrame to Spark's noop sink."""
        frame = self.frame(rows, size)
        return timed(lambda: noop(frame))

    def drop(self, rows: int, size: int = MESSAGE_BYTES) -> dict[str, Any]:
        """Write it to a sink in Python that drops it."""
        frame = self.frame(rows, size)
        return timed(lambda: frame.write.format("drop").mode("append").save())

    def write(self, rows: int) -> dict[str, Any]:
        """Write it into tasks."""
        answer = timed(lambda: self._write(rows))
        return {**answer, "received": self._take(rows)}

    def there_and_back(self, rows: int) -> dict[str, Any]:
        """Write it into tasks, and read it back."""

        def both() -> None:
            self._write(rows)
            noop(self._read(self._spark.read, TASKS).load())

        answer = timed(both)
        return {**answer, "received": self._take(rows)}

    def each_row(self, rows: int) -> dict[str, Any]:
        """Send it row by row from foreachPartition, as a program without the format does."""
        handle = ClientHandle(self._addresses[0], topology=TOPOLOGY)

        def send(partition: Iterable[Any]) -> None:
            with handle as client:
                for row in partition:
                    client.send(row.task, row.message.encode())

        answer = timed(lambda: self.frame(rows).foreachPartition(send))
        return {**answer, "received": self._take(rows)}

    def check(self, rows: int) -> dict[str, Any]:
        """Write numbered rows, read them back, and count the rows that are missing or duplicated."""
        self._write(rows)
        frame = (
            self._read(self._spark.read, TASKS)
            .load()
            .selectExpr("cast(cast(message as string) as bigint) as n")
        )
        once = frame.where(f"n between 0 and {rows - 1}").groupBy("n").count().where("count = 1").count()
        return {"wrong": rows - once + self._take(rows) - rows}

    def _write(self, rows: int) -> None:
        self.frame(rows).write.format("tuplewire").mode("append").options(**self._where).save()

    def _read(self, reader: Any, tasks: Iterable[int], **more: str) -> Any:
        return reader.format("tuplewire").options(**self._where, tasks=",".join(map(str, tasks)), **more)

    def _take(self, rows: int) -> int:
        """Receive the messages of TASKS, outside Spark, so that the next trial starts empty."""
        return sum(self._take_task(task, rows // len(TASKS)) for task in TASKS)

    def _take_task(self, task: int, expected: int) -> int:
        got = 0
        with (
            Client(self._addresses[WORKER_OF[task]], topology=TOPOLOGY) as client,
            client.recv([task], timeout=WAIT_SECONDS) as batches,
        ):
            while got < expected:
                got += len(next(batches))
            batches.acknowledge()
        return got

    def floor(self, batches: int) -> dict[str, Any]:
        """Return the times of Spark's own micro-batches of one row."""
        reader = self._spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1)
        return self._micro_batches(reader.load(), "noop", {}, batches)

    def micro_batches(self, batches: int) -> dict[str, Any]:
        """Return the times of micro-batches that read one message and write it to another task."""
        count = batches + WARM_BATCHES
        with Client(self._addresses[0], topology=TOPOLOGY) as client:
            client.send(TaskMessageBatch.from_columns(TASKS[0], numbered(0, count)))
            client.flush()
        reader = self._read(self._spark.readStream, TASKS[:1], maxMessagesPerTrigger="1")
        frame = reader.load().selectExpr(f"{TARGET} as task", "message")
        answer = self._micro_batches(frame, "tuplewire", self._where, batches)
        return {**answer, "received": self._take_task(TARGET, count)}

    def _micro_batches(
        self, frame: DataFrame, sink: str, options: dict[str, str], batches: int
    ) -> dict[str, Any]:
        """Run the micro-batches; return the milliseconds of each, by Spark's own clock."""
        millis: dict[int, int] = {}
        with tempfile.TemporaryDirectory(dir=memory()) as directory:
            query = (
                frame.writeStream.format(sink)
                .options(**options)
                .option("checkpointLocation", directory)
                .trigger(processingTime="0 seconds")
                .start()
            )
            try:
                deadline = time.monotonic() + BATCH_SECONDS
                while len(millis) < batches + WARM_BATCHES:
                    if not query.isActive or time.monotonic() > deadline:
                        raise BenchError(f"micro-batches to {sink}: {len(millis)} done, {query.exception()}")
                    for progress in query.recentProgress:
                        if progress["numInputRows"]:
                            millis[progress["batchId"]] = progress["durationMs"]["triggerExecution"]
                    time.sleep(0.1)
            finally:
                query.stop()
        return {"millis": [millis[batch] for batch in sorted(millis)[WARM_BATCHES:]]}


def timed(action: Callable[[], object]) -> dict[str, Any]:
    """Return the time of an action in seconds."""
    start = time.monotonic()
    action()
    return {"seconds": time.monotonic() - start}


def noop(frame: DataFrame) -> None:
    """Write a DataFrame to Spark's noop sink."""
    frame.write.format("noop").mode("overwrite").save()


def memory() -> str | None:
    """Return a folder in memory, so that the speed of a disk has no effect."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - a folder of our own within


def main(*addresses: str) -> None:
    """Answer requests."""
    conf = {"spark.executorEnv.GRPC_VERBOSITY": "ERROR"}
    os.environ.update(WarmSpark().environment)
    with local_session("bench", cores=2 * CORES, conf=conf) as spark:
        frames = Frames(spark, *addresses)
        serve(
            {
                "check": frames.check,
                "noop": frames.noop,
                "drop": frames.drop,
                "write": frames.write,
                "there_and_back": frames.there_and_back,
                "each_row": frames.each_row,
                "floor": frames.floor,
                "micro_batches": frames.micro_batches,
            }
        )


if __name__ == "__main__":
    main(*sys.argv[2:])
