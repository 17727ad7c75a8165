"""Micro-batches larger than the tasks' queues, with consumers that are absent for long.

The driver streams numbered rows of 1 KB until its standard input ends, with a query for each guarantee.
Then it stops both queries, which must still be active, starts them again from their checkpoints, and lets
them finish.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from helpers import eventually, queries
from helpers.consumers import RowCounter
from helpers.drivers import DRIVER_SECONDS, as_program
from helpers.topology import metric, workers_with
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tuplewire_demos.local_session import local_session

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]

GUARANTEES = {"exactlyOnce": {0: [1], 1: [2]}, "atLeastOnce": {0: [3], 1: [4]}}
"""The tasks of each query."""
QUEUE = 2000
TIMEOUT = "10"
ROW_BYTES = 1000
MOST_ROWS = 2_000_000
WARNINGS = {"exactlyOnce": 2, "atLeastOnce": 3}
"""With exactlyOnce, a commit and then the next epoch warn. With atLeastOnce, two tasks warn immediately and
after a minute: a third warning shows that one of them has warned again.
"""


def test_stalled_consumers_make_queries_wait(tmp_path: Path) -> None:
    """A query warns each minute, is still active when its consumers return, and loses no row."""
    log = tmp_path / "log"
    seen = {guarantee: RowCounter(MOST_ROWS, ROW_BYTES) for guarantee in GUARANTEES}

    def warnings(guarantee: str) -> int:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        of_sinks = [" epoch=" in line for line in lines if "sink.waiting " in line]
        return of_sinks.count(guarantee == "exactlyOnce")

    def done(guarantee: str) -> int:
        return len(list((tmp_path / guarantee / "commits").glob("[0-9]*")))

    flags = ["--drain-seconds=1", f"--receive-queue-messages={QUEUE}"]
    with workers_with([1, 3], [2, 4], topology="spark", flags=flags) as running, log.open("wb") as errors:
        command, environment = as_program(__file__, running.endpoints[0].address, tmp_path)
        driver = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stderr=errors, start_new_session=True
        )
        try:
            for each, count in WARNINGS.items():
                eventually(lambda: warnings(each) >= count, DRIVER_SECONDS, "it warns, and again")  # noqa: B023
            before = {each: done(each) for each in GUARANTEES}
            assert all(metric(each, "tuplewire_published_waiting_messages") > 0 for each in running.endpoints)
            with ExitStack() as reading:
                for each, tasks in GUARANTEES.items():
                    reading.enter_context(seen[each].reading(running.endpoints, tasks))
                for each, commits in before.items():
                    eventually(lambda: done(each) >= commits + 2, DRIVER_SECONDS, "the query goes on")  # noqa: B023
                driver.communicate(timeout=DRIVER_SECONDS)
        finally:
            if driver.poll() is None:
                os.killpg(driver.pid, signal.SIGKILL)
                driver.communicate()
    assert driver.returncode == 0, log.read_text(encoding="utf-8", errors="replace")
    for each in GUARANTEES:
        rows = bytes(seen[each].times.rstrip(b"\0"))
        assert len(rows) > seen[each].count // 2
        assert 0 not in rows, f"row {rows.index(0)} is missing"
        if each == "exactlyOnce":
            assert max(rows) == 1, f"row {rows.index(max(rows))} has come {max(rows)} times"


def start(spark: SparkSession, address: str, place: Path, guarantee: str, **trigger: Any) -> StreamingQuery:
    """Start a query of two Spark tasks, from its checkpoint if there is one."""
    ((first,), _) = GUARANTEES[guarantee].values()
    numbers = spark.readStream.format("rate").options(rowsPerSecond=1000, numPartitions=2).load()
    rows = numbers.selectExpr(
        f"cast(value % 2 + {first} as int) as task",
        "concat(lpad(value, 12, '0'), repeat(' ', 988)) as message",
    )
    where = {"address": address, "topology": "spark", "timeout": TIMEOUT, "deliveryGuarantee": guarantee}
    return queries.start_sink(rows, where, place / guarantee, **trigger)


def main(address: str, directory: str) -> None:
    """Run the queries."""
    place = Path(directory)
    with local_session("waiting", cores=4) as spark:
        queries = [start(spark, address, place, each, processingTime="0 seconds") for each in GUARANTEES]
        sys.stdin.read()
        for query in queries:
            assert query.isActive, str(query.exception())
            query.stop()
        for each in GUARANTEES:
            start(spark, address, place, each, availableNow=True).awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
