"""The client inside the functions that Spark runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from helpers.topology import collect
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tuplewire import Client, TaskMessage, TaskMessageBatch
from tuplewire.spark import ClientHandle
from tuplewire.spark.client_handle import close_clients

pytestmark = pytest.mark.spark

TASK = 1


@pytest.fixture(scope="module")
def address(spark: SparkSession, launch: Any) -> Iterator[str]:  # noqa: ARG001 - Spark forks, so it comes first
    """Run a worker and return its address."""
    with launch("spark", {0: [TASK]}) as running:
        yield running.endpoints[0].address


@pytest.fixture
def handle(address: str) -> Iterator[ClientHandle]:
    """Return a handle as a driver makes it."""
    yield ClientHandle(address, topology="spark")
    close_clients()


def taken(address: str, count: int) -> list[int]:
    """Take so many messages; their numbers, sorted."""
    with Client(address, topology="spark") as client, client.recv([TASK], timeout=30) as batches:
        return sorted(int(payload) for _, payload in collect(batches, count))


def numbers_frame(spark: SparkSession, count: int) -> DataFrame:
    """Return so many numbers in two partitions."""
    return spark.range(0, count, 1, 2)


def test_one_connection_per_process_across_jobs(
    spark: SparkSession, address: str, handle: ClientHandle
) -> None:
    """Python workers are reused from job to job, and so is their connection; each task waits for its own."""

    def send(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os

        from tuplewire.spark import client_handle

        with handle as client:
            for batch in batches:
                payloads = batch.column("id").cast(pa.string())
                client.send(TaskMessageBatch.from_arrow(TASK, payloads))
        (connected,) = client_handle._clients.values()
        pending = connected.ledger().pending
        columns = {"process": [os.getpid()], "client": [id(connected)], "pending": [pending]}
        yield pa.RecordBatch.from_pydict(columns)

    seen = []
    for _ in range(3):
        frame = numbers_frame(spark, 100).mapInArrow(send, "process bigint, client bigint, pending bigint")
        seen += frame.collect()
        assert taken(address, 100) == list(range(100))
    assert {row.pending for row in seen} == {0}
    assert len({(row.process, row.client) for row in seen}) == len({row.process for row in seen}) < len(seen)


def test_foreach_partition(spark: SparkSession, address: str, handle: ClientHandle) -> None:
    """Row by row, from an RDD's worker."""

    def send(rows: Iterable[Any]) -> None:
        with handle as client:
            client.send(TaskMessage(TASK, b"%d" % row.id) for row in rows)

    numbers_frame(spark, 50).foreachPartition(send)
    assert taken(address, 50) == list(range(50))


def test_apply_in_pandas(spark: SparkSession, address: str, handle: ClientHandle) -> None:
    """Group by group."""

    def send(group: pd.DataFrame) -> pd.DataFrame:
        with handle as client:
            client.send(TaskMessageBatch.from_columns(TASK, [b"%d" % number for number in group["id"]]))
        return group.head(1)

    frame = numbers_frame(spark, 50)
    groups = frame.groupBy((frame.id % 5).alias("remainder"))
    assert groups.applyInPandas(send, "id bigint").count() == 5
    assert taken(address, 50) == list(range(50))


def test_foreach_batch(spark: SparkSession, address: str, handle: ClientHandle, tmp_path: Path) -> None:
    """In the driver, micro-batch by micro-batch."""

    def send(frame: DataFrame, _batch: int) -> None:
        with handle as client:
            client.send(TaskMessageBatch.from_columns(TASK, [b"%d" % row.id for row in frame.collect()]))

    numbers_frame(spark, 20).write.parquet(str(tmp_path / "numbers"))
    query = (
        spark.readStream.schema("id bigint")
        .parquet(str(tmp_path / "numbers"))
        .writeStream.foreachBatch(send)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(110)
    assert taken(address, 20) == list(range(20))


def test_sending_after_the_block_fails_the_task(spark: SparkSession, handle: ClientHandle) -> None:
    """A generator that outlives the block would send what nobody waits for: an error that says so."""

    def send(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        def one(client: Any, batch: pa.RecordBatch) -> pa.RecordBatch:
            client.send(TaskMessageBatch.from_arrow(TASK, batch.column("id").cast(pa.string())))
            return batch

        with handle as client:
            return (one(client, batch) for batch in batches)

    with pytest.raises(PySparkException, match="the `with` block of this client is over"):
        numbers_frame(spark, 10).mapInArrow(send, "id bigint").collect()
