"""A streaming query whose driver is killed, and that is started again from its checkpoint."""

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
from helpers import eventually
from helpers.topology import numbered
from pyspark.sql import SparkSession

from tuplewire import Client

pytestmark = [pytest.mark.spark, pytest.mark.slow]

DRIVER = Path(__file__).with_name("streaming_driver.py")
COUNT = 1000
TASKS = {0: [1, 2], 1: [3, 4]}
DRIVER_SECONDS = 180.0


@contextmanager
def driver(address: str, directory: Path, trigger: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a driver; at the end of the block it is killed, and its JVM with it, if it still runs."""
    process = subprocess.Popen(
        [sys.executable, str(DRIVER), address, str(directory), trigger], start_new_session=True
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def planned(directory: Path) -> set[str]:
    """Return the micro-batches that the checkpoint says were begun."""
    return {each.name for each in (directory / "checkpoint" / "offsets").glob("[0-9]*")}


def committed(directory: Path) -> set[str]:
    """Return the micro-batches that the checkpoint says are done."""
    return {each.name for each in (directory / "checkpoint" / "commits").glob("[0-9]*")}


@pytest.mark.timeout(400)
def test_killed_driver_leaves_no_trace(spark: SparkSession, launch: Any, tmp_path: Path) -> None:
    """A driver is killed within a micro-batch; the next one ends with every message exactly once."""

    def is_within_a_batch() -> bool:
        done = committed(tmp_path)
        return len(done) >= 2 and planned(tmp_path) > done

    with launch("spark", TASKS) as running:
        address = running.endpoints[0].address
        with Client(address, topology="spark", source=9) as client:
            for task in range(1, 5):
                client.send(numbered(task, range(COUNT // 4)))
        with driver(address, tmp_path, "live"):
            eventually(
                is_within_a_batch, DRIVER_SECONDS, "the driver is within its third micro-batch or later"
            )
        assert len(committed(tmp_path)) < COUNT // 100, "the driver had nothing left to do"
        with driver(address, tmp_path, "now") as last:
            assert last.wait(DRIVER_SECONDS) == 0
    table = spark.read.parquet(str(tmp_path / "table")).orderBy("task", "sequence").collect()
    assert [tuple(row) for row in table] == [
        (task, 9, number + 1, str(number)) for task in range(1, 5) for number in range(COUNT // 4)
    ]
