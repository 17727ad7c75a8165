"""A gigabyte, written exactly once by a driver of 1 GB.

The driver computes all rows without writing them, then writes a hundredth of them, then the rest. It reports
the peak memory of the JVM and of its Python processes after each step.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.consumers import RowCounter
from helpers.drivers import report, run_driver
from pyspark.sql import DataFrame, SparkSession

from tuplewire_demos.local_session import local_session

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]

TASKS = {0: [1, 2], 1: [3, 4]}
ROWS = 5_000_000
ROW_BYTES = 200
MOST_GROWTH = 100 << 20
"""Maximum growth of the JVM and of each Python process, while a gigabyte is written."""
PARTITIONS = 4
KIB = 1024


def descendants(process_id: int) -> list[int]:
    """Return a process and its descendants, itself first."""
    found = [process_id]
    for each in found:
        for children in Path(f"/proc/{each}/task").glob("*/children"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                found += map(int, children.read_text(encoding="ascii").split())
    return found


def peak_bytes(process_id: int) -> int:
    """Return the peak memory of a process; 0 if it has exited."""
    try:
        status = Path(f"/proc/{process_id}/status").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) * KIB for line in status.splitlines() if "VmHWM" in line), 0)


def numbered(spark: SparkSession, tasks: int, first: int, beyond: int) -> DataFrame:
    """Return rows with messages that start with their numbers, in 12 digits."""
    return spark.range(first, beyond, 1, PARTITIONS).selectExpr(
        f"cast(id % {tasks} + 1 as int) as task",
        f"concat(lpad(id, 12, '0'), repeat('x', {ROW_BYTES - 12})) as message",
    )


def test_a_gigabyte_needs_no_memory_of_spark(launch: Any) -> None:
    """Each row arrives once, and neither the JVM's nor a Python task's memory grows with the rows."""
    seen = RowCounter(ROWS, ROW_BYTES)
    with launch("spark", TASKS) as running, seen.reading(running.endpoints, TASKS):
        steps = run_driver(__file__, running.endpoints[0].address, 4, ROWS)
    assert seen.times == bytearray([1]) * ROWS, "a row is missing, or has come twice"
    grown = {who: steps["all"][who] - steps["few"][who] for who in ("jvm", "python")}
    assert all(each <= MOST_GROWTH for each in grown.values()), (grown, steps)


def main(address: str, tasks: int, rows: int) -> None:
    """Run the steps."""
    where = {"address": address, "topology": "spark", "deliveryGuarantee": "exactlyOnce"}
    with local_session("large-write", cores=2, conf={"spark.driver.memory": "1g"}) as spark:
        java: Any = spark.sparkContext._jvm
        jvm = int(java.java.lang.ProcessHandle.current().pid())
        few = rows // 100
        for step, frame in (
            ("noop", numbered(spark, tasks, 0, rows)),
            ("few", numbered(spark, tasks, 0, few)),
            ("all", numbered(spark, tasks, few, rows)),
        ):
            writer = frame.write.format("noop" if step == "noop" else "tuplewire").mode("append")
            writer.options(**where).save()
            # Spark reuses its Python processes, so all of them still exist.
            python = max(map(peak_bytes, descendants(jvm)[1:]), default=0)
            report(step, {"jvm": peak_bytes(jvm), "python": python})


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
