"""Micro-batches larger than the tasks' queues, with consumers that are slow or absent for long."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers import eventually
from helpers.row_counter import RowCounter
from helpers.topology import metric
from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]

DRIVER = Path(__file__).with_name("waiting_driver.py")
TASKS = {0: [1], 1: [2]}
ROW_BYTES = 1000
BACKLOG = 60_000
MOST_ROWS = 2_000_000
DRIVER_SECONDS = 400
WARNINGS = {"exactlyOnce": 2, "atLeastOnce": 3}
"""The driver warns ten seconds and a minute after it starts to wait. Two tasks warn immediately and after a
minute: a third warning shows that one of them has warned again.
"""


def published_without_room(running: Any) -> list[float]:
    """Return the number of published messages without queue space, at each worker."""
    return [metric(each, "tuplewire_publishing_messages") for each in running.endpoints]


@pytest.mark.timeout(900)
def test_a_backlog_over_the_queues_goes_through(spark: SparkSession, launch: Any, tmp_path: Path) -> None:
    """A micro-batch of twice the queues' size waits with default settings, and each row arrives once."""
    rows = spark.range(0, BACKLOG, 1, 4).selectExpr(
        "cast(id % 2 + 1 as int) as task", "concat(lpad(id, 12, '0'), repeat(' ', 988)) as message"
    )
    rows.write.parquet(str(tmp_path / "rows"))
    seen = RowCounter(BACKLOG, ROW_BYTES)
    with launch("spark", TASKS) as running:
        query = (
            spark.readStream.schema(rows.schema)
            .parquet(str(tmp_path / "rows"))
            .writeStream.format("tuplewire")
            .options(address=running.endpoints[0].address, topology="spark")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        eventually(lambda: min(published_without_room(running)) > 0, DRIVER_SECONDS, "both queues are full")
        with seen.reading(running.endpoints, TASKS):
            assert query.awaitTermination(DRIVER_SECONDS)
        batches = [each.numInputRows for each in query.recentProgress if each.numInputRows]
    assert batches == [BACKLOG]
    assert seen.times == bytearray([1]) * BACKLOG, "a row is missing, or has come twice"


@pytest.mark.timeout(1300)
@pytest.mark.parametrize("guarantee", ["exactlyOnce", "atLeastOnce"])
def test_a_stalled_consumer_makes_the_query_wait(guarantee: str, launch: Any, tmp_path: Path) -> None:
    """If consumers stall for longer than any timeout, the query warns each minute, and then continues.

    The query is still active when the consumers return, and every row has arrived at the end.
    """
    log, commits = tmp_path / "log", tmp_path / "checkpoint" / "commits"
    seen = RowCounter(MOST_ROWS, ROW_BYTES)

    def warnings() -> int:
        return log.read_text(encoding="utf-8", errors="replace").count("sink.waiting ")

    def done() -> int:
        return len(list(commits.glob("[0-9]*")))

    with launch("spark", TASKS) as running, log.open("wb") as errors:
        driver = subprocess.Popen(
            [sys.executable, str(DRIVER), running.endpoints[0].address, str(tmp_path), guarantee],
            stdin=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
        try:
            eventually(lambda: warnings() >= WARNINGS[guarantee], DRIVER_SECONDS, "it warns, and again")
            before = done()
            if guarantee == "exactlyOnce":
                assert min(published_without_room(running)) > 0
            with seen.reading(running.endpoints, TASKS):
                eventually(lambda: done() >= before + 2, DRIVER_SECONDS, "the query goes on")
                driver.communicate(timeout=DRIVER_SECONDS)
        finally:
            if driver.poll() is None:
                os.killpg(driver.pid, signal.SIGKILL)
                driver.communicate()
    assert driver.returncode == 0, log.read_text(encoding="utf-8", errors="replace")
    rows = bytes(seen.times.rstrip(b"\0"))
    assert len(rows) > seen.count // 2
    assert 0 not in rows, f"row {rows.index(0)} is missing"
    if guarantee == "exactlyOnce":
        assert max(rows) == 1, f"row {rows.index(max(rows))} has come {max(rows)} times"
