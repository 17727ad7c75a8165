"""A separate driver with a JVM of 1 GB: python large_write_driver.py ADDRESS TASKS ROWS.

Computes ROWS rows of 200 bytes without writing them, then writes a hundredth of them, then the rest, exactly
once. Prints the peak memory of the JVM and of its Python processes after each step, as lines of JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tuplewire_demos.local_session import local_session

ROW_BYTES = 200
PARTITIONS = 4
KIB = 1024


def children() -> dict[int, list[int]]:
    """Return the children of each process."""
    found: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text(encoding="utf-8").rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        found.setdefault(parent, []).append(int(stat.parent.name))
    return found


def descendants(process_id: int) -> list[int]:
    """Return a process and its descendants, itself first."""
    families = children()
    found = [process_id]
    for each in found:
        found += families.get(each, [])
    return found


def peak_bytes(process_id: int) -> int:
    """Return the peak memory of a process; 0 if it has exited."""
    try:
        status = Path(f"/proc/{process_id}/status").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) * KIB for line in status.splitlines() if "VmHWM" in line), 0)


def tell(step: str, jvm: int) -> None:
    """Print the peaks so far. Spark reuses its Python processes, so all of them still exist."""
    python = max(map(peak_bytes, descendants(jvm)[1:]), default=0)
    print(json.dumps({"step": step, "jvm": peak_bytes(jvm), "python": python}), flush=True)


def numbered(spark: SparkSession, tasks: int, first: int, beyond: int) -> DataFrame:
    """Return rows with messages that start with their numbers, in 12 digits."""
    return spark.range(first, beyond, 1, PARTITIONS).selectExpr(
        f"cast(id % {tasks} + 1 as int) as task",
        f"concat(lpad(id, 12, '0'), repeat('x', {ROW_BYTES - 12})) as message",
    )


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
            tell(step, jvm)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
