"""A separate driver on two executors: python cluster_driver.py, with settings as JSON on its input.

Prints a line of JSON for each case, [name, result]; the result of a failed case is the error text.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tuplewire import TaskMessageBatch
from tuplewire.spark import ClientHandle, register
from tuplewire_demos.local_session import local_session

TOPOLOGY = "spark"
ROWS = 1000


class Cases:
    """The cases by name; each returns a result that a test checks."""

    def __init__(self, spark: SparkSession, settings: dict[str, str]) -> None:
        self.spark = spark
        self.settings = settings
        self.where = {"address": settings["address"], "topology": TOPOLOGY}

    def use(self, interpreter: str) -> None:
        """Set the executors' interpreter; PYSPARK_PYTHON would set it only at the start."""
        self.spark.sparkContext.pythonExec = interpreter
        register(self.spark)

    def write(self, spark: SparkSession, tasks: str, **more: str) -> None:
        """Write rows to tasks, from one partition per executor."""
        rows = spark.range(0, ROWS, 1, 2).selectExpr("cast(id as string) as message")
        options = {"topology": TOPOLOGY, "grouping": "shuffle", "tasks": tasks, **more}
        rows.write.format("tuplewire").mode("append").options(**options).save()

    def read(self, spark: SparkSession, tasks: str) -> int:
        """Count the distinct rows in tasks."""
        frame = spark.read.format("tuplewire").options(**self.where, tasks=tasks).load()
        return frame.select("message").distinct().count()

    def sink(self) -> int:
        """Write through the worker next to each executor, and read through any worker."""
        self.use(self.settings["wheel"])
        self.write(self.spark, "1,2")
        return self.read(self.spark, "1,2")

    def stream(self) -> int:
        """Stream the rows of sink() to two other tasks."""
        query = (
            self.spark.readStream.format("tuplewire")
            .options(**self.where, tasks="1,2")
            .load()
            .selectExpr("task + 2 as task", "message")
            .writeStream.format("tuplewire")
            .options(**self.where, checkpointLocation=self.settings["checkpoint"])
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return self.read(self.spark, "3,4")

    def client(self) -> int:
        """Send in mapInArrow, through the worker next to each executor."""
        handle = ClientHandle(topology=TOPOLOGY)

        def send(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            with handle as client:
                for batch in batches:
                    messages = batch.column("id").cast(pa.string())
                    client.send(TaskMessageBatch.from_arrow(batch.column("task"), messages))
                    yield batch.select(["id"])

        rows = self.spark.range(0, ROWS, 1, 2).selectExpr("id", "cast(id % 2 + 5 as int) as task")
        rows.mapInArrow(send, "id bigint").count()
        return self.read(self.spark, "5,6")

    def archive(self) -> tuple[int, list[str]]:
        """Write and read with the interpreter of spark.archives."""
        self.use("./environment/bin/python")
        self.write(self.spark, "7,8", address=self.where["address"])
        # mapInArrow would need pandas there.
        found = self.spark.sparkContext.parallelize(range(2), 2).map(lambda _: place()).collect()
        return self.read(self.spark, "7,8"), found

    def artifact(self) -> tuple[int, list[str]]:
        """Write and read with an interpreter that receives Tuplewire through addArtifact."""
        self.use(self.settings["bare"])
        session = self.spark.newSession()
        session.addArtifact(self.settings["artifact"], pyfile=True)
        register(session)
        self.write(session, "9,10", address=self.where["address"])
        return self.read(session, "9,10"), places(session)

    def no_library(self) -> int:
        """Use a client in an executor without grpcio."""
        return self.handed_to("no_grpcio")

    def other_release(self) -> int:
        """Use a client in an executor with another release of Tuplewire."""
        return self.handed_to("other")

    def handed_to(self, interpreter: str) -> int:
        """Use a client in an incompatible interpreter."""
        self.use(self.settings[interpreter])
        handle = ClientHandle(self.where["address"], topology=TOPOLOGY)

        def send(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            with handle:
                yield from batches

        return self.spark.range(1).mapInArrow(send, "id bigint").count()


def place() -> str:
    """Return the location of Tuplewire in an executor."""
    import tuplewire

    return tuplewire.__file__


def places(spark: SparkSession) -> list[str]:
    """Return the location of Tuplewire in each of two tasks."""

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        yield pa.RecordBatch.from_pydict({"place": [place()]})

    return [row.place for row in spark.range(0, 2, 1, 2).mapInArrow(look, "place string").collect()]


def main() -> None:
    """Run every case."""
    settings = json.load(sys.stdin)
    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    os.environ["SPARK_SCALA_VERSION"] = "2.13"
    os.environ["SPARK_WORKER_DIR"] = settings["work"]
    # Executors must use only the packages of their interpreter.
    os.environ.pop("PYTHONPATH", None)
    conf = {
        "spark.master": "local-cluster[2,2,900]",
        "spark.executor.memory": "512m",
        "spark.task.maxFailures": "1",  # a retry would fail again
        # Most plans run only once here.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.archives": f"{settings['archive']}#environment",
        # Both executors must exist before the first task starts.
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    }
    with local_session("cluster", conf=conf) as spark:
        cases = Cases(spark, settings)
        each: list[Callable[[], object]] = [
            cases.sink,
            cases.stream,
            cases.client,
            cases.archive,
            cases.no_library,
            cases.other_release,
            cases.artifact,
        ]
        for case in each:
            result: Any
            try:
                result = case()
            except PySparkException as error:
                result = str(error)
            print(json.dumps([case.__name__, result]), flush=True)


if __name__ == "__main__":
    main()
