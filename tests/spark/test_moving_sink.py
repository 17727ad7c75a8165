"""A streaming query while its target task moves, its workers are replaced, and it is restarted."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from helpers import eventually, queries
from helpers.consumers import FollowingConsumer
from helpers.moving_workers import TASK, Workers
from helpers.topology import TOPOLOGY
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.spark, pytest.mark.long]

SECONDS = 100
ROWS = 40
"""Rows of each micro-batch."""


def start(spark: SparkSession, workers: Workers, checkpoint: Path) -> StreamingQuery:
    """Write numbers to the task, continuing from the checkpoint; each start is another run."""
    numbers = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=ROWS, numPartitions=1).load()
    rows = numbers.selectExpr(f"{TASK} as task", "cast(value as string) as message")
    addresses = ",".join(each.address for each in workers.running.values())
    return queries.start_sink(rows, {"address": addresses, "topology": TOPOLOGY}, checkpoint)


def test_moves_drains_and_restarts_under_a_sink(spark: SparkSession, tmp_path: Path) -> None:
    """Each row arrives once and in order during moves, replacements of all workers, and query restarts."""
    with ExitStack() as stack:
        workers = Workers(tmp_path, stack, drain_seconds=30)
        workers.put("a")
        consumer = FollowingConsumer(TASK, lambda: workers.running[workers.owner].address)
        stack.callback(consumer.stop)
        checkpoint = tmp_path / "checkpoint"
        query = start(spark, workers, checkpoint)

        def goes_on(micro_batches: int = 2) -> None:
            enough = len(consumer.got) + micro_batches * ROWS

            def has_come() -> bool:
                assert query.isActive, str(query.exception())
                return len(consumer.got) >= enough

            eventually(has_come, SECONDS, "more has come")

        goes_on()
        for owner in "bcab":
            workers.put(owner)
            goes_on(1)
        for name, following in [("b", "c"), ("c", "a"), ("a", "b")]:
            workers.put(following)
            workers.drain(name)
            goes_on(1)
            workers.start(name, same_port=True)
            workers.put(following)
            goes_on(1)
        for owner in "acb":
            query.stop()  # at any moment, also while it publishes
            workers.put(owner)
            query = start(spark, workers, checkpoint)
            goes_on(1)
        query.stop()
        committed = max(int(each.name) for each in (checkpoint / "commits").glob("[0-9]*"))
        eventually(lambda: len(consumer.got) >= (committed + 1) * ROWS, SECONDS)
        consumer.stop()
        assert consumer.got == list(range(len(consumer.got)))
        assert len(consumer.got) % ROWS == 0
