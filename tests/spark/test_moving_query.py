"""A streaming query and a batch read while their tasks move and their workers are replaced."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from helpers import eventually, queries
from helpers.moving_workers import ELSEWHERE, TASK, Workers
from helpers.topology import TOPOLOGY, numbered, status
from helpers.traffic import client_of
from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.long]

SECONDS = 100


def test_moves_drains_and_restarts_under_a_query(spark: SparkSession, tmp_path: Path) -> None:
    """With failOnDataLoss, each message is read once, also after the worker of the options is removed."""
    got: list[int] = []
    sent = 0

    def take(frame: DataFrame, _batch: int) -> None:
        got.extend(int(row.message) for row in frame.collect())

    with ExitStack() as stack:
        workers = Workers(tmp_path, stack, drain_seconds=30)
        workers.put("a")

        def send(name: str) -> None:
            nonlocal sent
            with client_of(workers.running[name].address) as client:
                client.send(numbered(TASK, range(sent, sent + 100)))
                client.flush(SECONDS)
            sent += 100

        def all_came() -> bool:
            assert query.isActive, str(query.exception())
            return len(got) >= sent

        def held(name: str) -> int:
            there = status(workers.running[name]).tasks
            return sum(each.queued_messages for each in there if each.task == TASK)

        where = {"address": workers.running["a"].address, "topology": TOPOLOGY, "tasks": str(TASK)}
        writer = queries.stream(spark, where).writeStream.foreachBatch(take)
        query = queries.start(writer, tmp_path / "checkpoint")
        send("a")
        eventually(all_came, SECONDS, "the query runs")
        for owner in "bc":
            send("a")
            workers.put(owner)
            send("b")
            eventually(all_came, SECONDS, "all has come")
        workers.put("a")
        for name, other in [("a", "b"), ("b", "c"), ("c", "a")]:
            send(name)
            workers.put(other)
            workers.drain(name)
            send(other)
            workers.start(name)
            workers.put(other)
            eventually(all_came, SECONDS, "all has come")
        eventually(lambda: held("a") == 0, SECONDS, "all is acknowledged")
        query.stop()
        assert sorted(got) == list(range(sent))
        where["address"] = workers.running["a"].address
        read = spark.read.format("tuplewire").options(**where).load()
        send("b")
        assert read.count() == 100
        workers.put("c")
        assert sorted(int(row.message) for row in read.collect()) == list(range(sent - 100, sent))
        assert set(ELSEWHERE) == set(workers.running)
