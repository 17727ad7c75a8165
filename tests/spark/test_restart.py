"""A query of tasks 1 to 4 into 5 to 8 is started again from its checkpoint after its driver was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from helpers import eventually, queries
from helpers.drivers import DRIVER_SECONDS, as_program
from helpers.topology import collect, numbered, status
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tuplewire import Client
from tuplewire_demos.local_session import local_session

pytestmark = [pytest.mark.spark, pytest.mark.slow]

COUNT = 1000
TASKS = {0: [1, 2, 7, 8], 1: [3, 4, 5, 6]}


def start(spark: SparkSession, address: str, directory: Path, **trigger: Any) -> StreamingQuery:
    """Start the query, from its checkpoint if there is one."""
    where = {"address": address, "topology": "spark"}
    read = queries.stream(spark, {**where, "tasks": "1-4", "maxMessagesPerTrigger": "100"})
    rows = read.selectExpr("task + 4 as task", "concat_ws(' ', source, sequence, message) as message")
    return queries.start_sink(rows, where, directory / "checkpoint", **trigger)


@contextmanager
def driver(address: str, directory: Path) -> Iterator[None]:
    """Run a driver; kill it and its JVM at the end of the block."""
    command, environment = as_program(__file__, address, directory)
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def committed(directory: Path) -> set[str]:
    """Return the micro-batches that the checkpoint lists as committed."""
    return {each.name for each in (directory / "checkpoint" / "commits").glob("[0-9]*")}


@pytest.mark.long
def test_killed_driver_leaves_no_trace(spark: SparkSession, launch: Any, tmp_path: Path) -> None:
    """A driver is killed between publishing and committing, and another one continues: each message once."""

    def has_published() -> bool:
        done = len(committed(tmp_path))
        tasks = [task for each in running.endpoints for task in status(each).tasks]
        return done >= 2 and sum(each.queued_messages for each in tasks if each.task > 4) > 100 * done

    with launch("spark", TASKS) as running:
        address = running.endpoints[0].address
        with Client(address, topology="spark", source=9) as client:
            for task in range(1, 5):
                client.send(numbered(task, range(COUNT // 4)))
        with driver(address, tmp_path):
            eventually(has_published, DRIVER_SECONDS, "a micro-batch is published and not committed")
        assert len(committed(tmp_path)) < COUNT // 100, "the driver had nothing left to do"
        assert start(spark, address, tmp_path, availableNow=True).awaitTermination(DRIVER_SECONDS)
        for worker, tasks in zip(running.endpoints, TASKS.values(), strict=True):
            for task in tasks[2:]:
                client = Client(worker.address, topology="spark")
                with client, client.recv([task], timeout=30) as batches:
                    got = collect(batches, COUNT // 4)
                assert [payload.decode() for _, payload in got] == [
                    f"9 {number + 1} {number}" for number in range(COUNT // 4)
                ]


def main(address: str, directory: str) -> None:
    """Run the query."""
    with local_session("driver", cores=2) as spark:
        start(spark, address, Path(directory), processingTime="0 seconds").awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
