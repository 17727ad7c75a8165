"""The client inside the functions that Spark runs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from helpers import queries
from helpers.topology import collect
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tuplewire import Client, TaskMessageBatch
from tuplewire.spark import ClientHandle
from tuplewire.spark.client_handle import close_clients

pytestmark = pytest.mark.spark

TASK = 1
LEFT = 2
"""Messages to this task are not consumed."""
FIRST = 3


@pytest.fixture(scope="module")
def address(spark: SparkSession, launch: Any) -> Iterator[str]:  # noqa: ARG001 - Spark forks: start it first
    """Run a worker and return its address."""
    with launch("spark", {0: [TASK, LEFT, FIRST]}) as running:
        yield running.endpoints[0].address


@pytest.fixture
def handle(address: str) -> Iterator[ClientHandle]:
    """Return a handle as a driver makes it."""
    yield ClientHandle(address, topology="spark")
    close_clients()


def taken(address: str, count: int) -> list[int]:
    """Consume `count` messages, and return their sorted numbers."""
    with Client(address, topology="spark") as client, client.recv([TASK], timeout=30) as batches:
        return sorted(int(payload) for _, payload in collect(batches, count))


def numbers_frame(spark: SparkSession, count: int) -> DataFrame:
    """Return `count` numbers in two partitions."""
    return spark.range(0, count, 1, 2)


def test_one_connection_per_process_across_jobs(
    spark: SparkSession, address: str, handle: ClientHandle
) -> None:
    """Python workers and their connections are reused across jobs; each task flushes its own messages."""

    def send(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os

        from tuplewire.spark import client_handle

        with handle as client:
            for batch in batches:
                client.send(TaskMessageBatch.from_arrow(TASK, batch.column("id").cast(pa.string())))
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


def test_apply_in_pandas(spark: SparkSession, address: str, handle: ClientHandle) -> None:
    """A client sends in applyInPandas, group by group."""

    def send(group: pd.DataFrame) -> pd.DataFrame:
        with handle as client:
            client.send(TaskMessageBatch.from_columns(TASK, [b"%d" % number for number in group["id"]]))
        return group.head(1)

    frame = numbers_frame(spark, 50)
    assert frame.groupBy((frame.id % 5).alias("remainder")).applyInPandas(send, "id bigint").count() == 5
    assert taken(address, 50) == list(range(50))


def test_sending_after_the_block_fails_the_task(spark: SparkSession, handle: ClientHandle) -> None:
    """A generator that sends after its block was left fails, because its messages would not be flushed."""

    def send(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        def one(client: Any, batch: pa.RecordBatch) -> pa.RecordBatch:
            client.send(TaskMessageBatch.from_arrow(TASK, batch.column("id").cast(pa.string())))
            return batch

        with handle as client:
            return (one(client, batch) for batch in batches)

    with pytest.raises(PySparkException, match="the `with` block of this client has been left"):
        numbers_frame(spark, 10).mapInArrow(send, "id bigint").collect()


FORGOTTEN = r"UnflushedMessagesError: Spark's task attempt \d+ has sent messages and ended without leaving"


def forget(handle: ClientHandle, payloads: Iterable[bytes]) -> None:
    """Send without a flush."""
    client = handle.__enter__()
    client.send(TaskMessageBatch.from_columns(LEFT, list(payloads)))


def forget_in_foreach_partition(frame: DataFrame, handle: ClientHandle) -> None:
    """Omit the flush in foreachPartition."""
    frame.foreachPartition(lambda _: forget(handle, [b"x"]))


def forget_in_pandas(frame: DataFrame, handle: ClientHandle) -> None:
    """Omit the flush in applyInPandas."""

    def send(group: pd.DataFrame) -> pd.DataFrame:
        forget(handle, [b"x"])
        return group

    frame.groupBy("id").applyInPandas(send, "id bigint").count()


def forget_in_a_generator(frame: DataFrame, handle: ClientHandle) -> None:
    """Stop halfway through a generator with an open block, and store a reference to it."""

    def sending(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with handle as client:
            for batch in batches:
                client.send(TaskMessageBatch.from_columns(LEFT, [b"x"]))
                yield batch

    def send(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import builtins

        builtins.kept = sending(batches)  # type: ignore[attr-defined]
        yield next(builtins.kept)  # type: ignore[attr-defined]

    frame.mapInArrow(send, "id bigint").count()


# release_smoke.py does the same in mapInArrow.
@pytest.mark.parametrize("forgetful", [forget_in_foreach_partition, forget_in_pandas, forget_in_a_generator])
def test_the_task_that_forgets_fails(
    spark: SparkSession, handle: ClientHandle, forgetful: Callable[[DataFrame, Any], None]
) -> None:
    """A task that does not flush its messages fails with an explanation, in each kind of function."""
    with pytest.raises(PySparkException, match=FORGOTTEN):
        forgetful(spark.range(0, 4, 1, 1), handle)


def test_the_query_that_forgets_fails(spark: SparkSession, handle: ClientHandle, tmp_path: Path) -> None:
    """If the driver does not flush, the next micro-batch fails, because no task could fail."""
    done = []

    def send(frame: DataFrame, batch: int) -> None:
        forget(handle, [b"%d" % row.id for row in frame.collect()])
        done.append(batch)

    numbers_frame(spark, 20).write.parquet(str(tmp_path / "numbers"))
    files = spark.readStream.schema("id bigint").option("maxFilesPerTrigger", 1)
    read = files.parquet(str(tmp_path / "numbers"))
    query = queries.start(read.writeStream.foreachBatch(send), tmp_path / "checkpoint", availableNow=True)
    with pytest.raises(PySparkException, match="UnflushedMessagesError: a function has sent messages"):
        query.awaitTermination(110)
    assert done == [0]


def test_a_failure_that_python_swallows(spark: SparkSession) -> None:
    """If an abandoned generator cannot flush, the task fails, although Python ignores the error."""
    handle = ClientHandle("127.0.0.1:1", timeout=0.3)

    def sending() -> Iterator[int]:
        with handle as client:
            client.send(TaskMessageBatch.from_columns(LEFT, [b"x"]))
            yield 1
            yield 2

    def send(rows: Iterable[Any]) -> Iterator[int]:
        for _ in rows:
            pass
        yield next(sending())

    with pytest.raises(PySparkException, match=r"closed before its end.*127\.0\.0\.1:1 is not connected"):
        numbers_frame(spark, 2).rdd.mapPartitions(send).collect()


def test_only_the_first_rows(spark: SparkSession, address: str, handle: ClientHandle) -> None:
    """If Spark stops a function early, messages that were flushed before a `yield` have arrived."""

    def send(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with handle as client:
            for batch in batches:
                client.send(TaskMessageBatch.from_arrow(FIRST, batch.column("id").cast(pa.string())))
                client.flush()
                yield batch

    first = spark.range(0, 100_000, 1, 1).mapInArrow(send, "id bigint").take(3)
    assert [row.id for row in first] == [0, 1, 2]
    with Client(address, topology="spark") as client, client.recv([FIRST], timeout=30) as batches:
        assert [each.message for each in itertools.islice(next(batches), 3)] == [b"0", b"1", b"2"]
