"""Spark's calls of readers and writers, without a JVM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition


class Reader(Protocol):
    """A reader of partitions."""

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read a partition, in a Spark task."""


def begin_attempt(partition: int = 0, attempt: int = 0, epoch: int = 0, run: str = "") -> None:
    """Simulate an attempt of a Spark task from now on, in a micro-batch of a query's run."""
    context = TaskContext()
    context._partitionId, context._taskAttemptId = partition, attempt
    query = {"sql.streaming.queryId": "q", "streaming.sql.batchId": str(epoch)}
    context._localProperties = {**query, "spark.jobGroup.id": run}
    TaskContext._setTaskContext(context)


def end_attempt() -> None:
    """Stop simulating a Spark task."""
    TaskContext._setTaskContext(None)


def rows(task: int, payloads: range) -> pa.RecordBatch:
    """Return rows in Spark's form: numbers for a task."""
    tasks = pa.array([task] * len(payloads), pa.int32())
    return pa.RecordBatch.from_pydict({"task": tasks, "message": [str(number) for number in payloads]})


def payloads(reader: Reader, partitions: Sequence[InputPartition]) -> list[int]:
    """Read partitions to their ends; return the numbers."""
    return [
        int(payload)
        for partition in partitions
        for batch in reader.read(partition)
        for payload in batch.column("message").to_pylist()
    ]
