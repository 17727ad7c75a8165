"""Streaming queries while their worker fails, or while they are slower than their senders."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import eventually, queries
from helpers.program import in_threads
from helpers.restartable import RestartableWorker, restartable
from helpers.topology import TOPOLOGY, numbered, queued
from helpers.traffic import client_of
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tuplewire.spark.task_workers import TaskPoller

pytestmark = pytest.mark.spark

TASK = 1
SECONDS = 100
QUEUE = 200
"""Maximum number of messages that the worker queues for the task."""


class Seen:
    """The messages that a query has output, in the driver. A micro-batch waits until `goes` is set."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.has_read = threading.Event()
        self.goes = threading.Event()
        self.goes.set()

    def add(self, frame: DataFrame, _batch: int) -> None:
        """Record a micro-batch."""
        rows = frame.orderBy("sequence").collect()
        self.has_read.set()
        assert self.goes.wait(SECONDS)
        self.numbers += [int(row.message) for row in rows]

    def hold(self) -> None:
        """Make the next micro-batch wait."""
        self.has_read.clear()
        self.goes.clear()

    def wait_for(self, count: int) -> None:
        """Wait until `count` messages have arrived, and no number below `count` is missing."""
        eventually(lambda: len(self.numbers) >= count, SECONDS, f"{count} messages have come")
        eventually(lambda: set(range(count)) <= set(self.numbers), SECONDS, f"none below {count} is missing")


@pytest.fixture
def worker(spark: SparkSession, tmp_path: Path) -> Iterator[RestartableWorker]:  # noqa: ARG001 - Spark forks
    """Run a worker that can be killed and restarted at its address."""
    with restartable(tmp_path, [TASK], f"--receive-queue-messages={QUEUE}") as running:
        yield running


def start(
    spark: SparkSession, worker: RestartableWorker, checkpoint: Path, seen: Seen, **more: str
) -> StreamingQuery:
    """Start a query on the task."""
    where = {"address": worker.endpoint.address, "topology": TOPOLOGY, "tasks": str(TASK), **more}
    return queries.start(queries.stream(spark, where).writeStream.foreachBatch(seen.add), checkpoint)


def test_a_worker_dies_under_a_query(spark: SparkSession, worker: RestartableWorker, tmp_path: Path) -> None:
    """The query fails with advice, or continues with failOnDataLoss=false; lost messages are sent again."""
    checkpoint, seen = tmp_path / "checkpoint", Seen()
    with client_of(worker.endpoint.address, ack_mode="processed") as client:
        query = start(spark, worker, checkpoint, seen)
        client.send(numbered(TASK, range(100)))
        seen.wait_for(100)
        seen.hold()
        client.send(numbered(TASK, range(100, 200)))
        assert seen.has_read.wait(SECONDS)
        worker.kill()
        seen.goes.set()
        worker.start()
        with pytest.raises(PySparkException, match=r"(?s)DataLossError.*restarted.*failOnDataLoss=false"):
            query.awaitTermination(SECONDS)
        query = start(spark, worker, checkpoint, seen, failOnDataLoss="false")
        seen.wait_for(200)
        seen.hold()
        client.send(numbered(TASK, range(200, 300)))
        assert seen.has_read.wait(SECONDS)
        worker.kill()
        client.send(numbered(TASK, range(300, 400)))
        seen.goes.set()
        worker.start()
        seen.wait_for(400)
        client.flush(SECONDS)
        assert client.ledger().pending == 0
        assert query.isActive
        query.stop()
    assert list(dict.fromkeys(seen.numbers)) == list(range(400))
    twice = [number for number in range(400) if seen.numbers.count(number) > 1]
    assert set(twice) <= set(range(100, 300)), "what was committed came again"


@pytest.mark.long
def test_a_worker_is_away_for_a_while(spark: SparkSession, worker: RestartableWorker, tmp_path: Path) -> None:
    """A worker that does not respond for longer than a call's timeout only delays the query."""
    seen = Seen()
    with client_of(worker.endpoint.address) as client:
        query = start(spark, worker, tmp_path / "checkpoint", seen)
        client.send(numbered(TASK, range(100)))
        seen.wait_for(100)
        seen.hold()
        client.send(numbered(TASK, range(100, 200)))
        assert seen.has_read.wait(SECONDS)
        away_until = time.monotonic() + TaskPoller.CALL_SECONDS + 2
        os.kill(worker.endpoint.process_id, signal.SIGSTOP)
        seen.goes.set()
        eventually(lambda: time.monotonic() > away_until, SECONDS)
        os.kill(worker.endpoint.process_id, signal.SIGCONT)
        client.send(numbered(TASK, range(200, 300)))
        seen.wait_for(300)
        assert query.isActive
        query.stop()
    assert seen.numbers == list(range(300))


def test_a_slow_query_holds_its_senders_up(
    spark: SparkSession, worker: RestartableWorker, tmp_path: Path
) -> None:
    """Messages in flight stay within the limits of worker and sender, and all arrive once and in order."""
    count = 10 * QUEUE
    seen = Seen()
    seen.hold()
    client = client_of(worker.endpoint.address, max_pending_messages=QUEUE, max_block_seconds=SECONDS)

    def send() -> None:
        for number in range(0, count, 20):
            client.send(numbered(TASK, range(number, number + 20)))

    with client, in_threads(send) as (sending,):
        query = start(spark, worker, tmp_path / "checkpoint", seen)

        def is_full() -> bool:
            held = queued(worker.endpoint, TASK), client.ledger().pending
            assert max(held) <= QUEUE, held
            return held == (QUEUE, QUEUE)

        eventually(is_full, SECONDS, "worker and sender hold what they may")
        assert not client.try_send(numbered(TASK, range(1)))
        assert client.ledger().accepted == 2 * QUEUE
        assert not sending.done()
        seen.goes.set()
        sending.result(SECONDS)
        client.flush(SECONDS)
        seen.wait_for(count)
        query.stop()
        assert client.ledger().accepted == count
    assert seen.numbers == list(range(count))
