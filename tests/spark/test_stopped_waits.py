"""Queries and writes that wait for queue space end when Spark stops them; accepted rows arrive."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import eventually, queries
from helpers.program import in_threads
from helpers.restartable import RestartableWorker, restartable
from helpers.topology import TOPOLOGY, numbers, queued
from helpers.traffic import take
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tuplewire.spark import register

pytestmark = pytest.mark.spark

TASK = 1
QUEUE = 50
SECONDS = 60
STOPS_WITHIN = 10


@pytest.fixture
def worker(spark: SparkSession, tmp_path: Path) -> Iterator[RestartableWorker]:  # noqa: ARG001 - Spark forks
    """Run a worker with a queue that is soon full."""
    with restartable(tmp_path, [TASK], f"--receive-queue-messages={QUEUE}") as running:
        yield running


def options(worker: RestartableWorker, guarantee: str) -> dict[str, str]:
    """Return the options of a sink."""
    where = {"address": worker.endpoint.address, "topology": TOPOLOGY, "timeout": "60"}
    return {**where, "deliveryGuarantee": guarantee}


@pytest.mark.parametrize("guarantee", ["exactlyOnce", "atLeastOnce"])
def test_a_query_stops_while_nobody_consumes(
    guarantee: str, spark: SparkSession, worker: RestartableWorker, tmp_path: Path
) -> None:
    """A query without a consumer stops in time; with exactlyOnce, its commits do not wait for a consumer."""
    commits = tmp_path / "checkpoint" / "commits"
    numbers = spark.readStream.format("rate").option("rowsPerSecond", "200").load()
    rows = numbers.selectExpr(f"{TASK} as task", "lpad(value, 12, '0') as message")
    query = queries.start_sink(rows, options(worker, guarantee), tmp_path / "checkpoint")
    eventually(lambda: queued(worker.endpoint, TASK) >= QUEUE, SECONDS, "the queue is full")
    time.sleep(1)  # no condition shows that a commit or a task waits now
    began = time.monotonic()
    query.stop()
    assert time.monotonic() - began < STOPS_WITHIN
    assert query.exception() is None
    if guarantee == "exactlyOnce":
        assert len(list(commits.glob("[0-9]*"))) >= 1, "a commit ends, though nobody consumes"


@pytest.mark.parametrize("guarantee", ["exactlyOnce", "atLeastOnce"])
def test_a_cancelled_write_ends_while_nobody_consumes(
    guarantee: str, spark: SparkSession, worker: RestartableWorker
) -> None:
    """A cancelled write ends in time; with exactlyOnce, the worker has all rows and delivers them later."""
    rows = spark.range(500).selectExpr(f"{TASK} as task", "lpad(id, 12, '0') as message")
    where = options(worker, guarantee)

    def write() -> None:
        register(spark)
        spark.sparkContext.setJobGroup("waits", "a write that waits", interruptOnCancel=True)
        with contextlib.suppress(PySparkException, Py4JJavaError):
            rows.coalesce(1).write.format("tuplewire").mode("append").options(**where).save()

    with in_threads(write) as (writing,):
        eventually(lambda: queued(worker.endpoint, TASK) >= QUEUE, SECONDS, "the queue is full")
        spark.sparkContext.cancelJobGroup("waits")
        writing.result(STOPS_WITHIN)
    if guarantee == "exactlyOnce":
        assert numbers(take(worker.endpoint, TASK, 500)) == list(range(500))
