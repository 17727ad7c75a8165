"""A driver of its own, on two executors that fail: python attempts_driver.py ADDRESS DIRECTORY.

Writes the numbers to 3999, atomically. One attempt of a partition fails halfway. One of another kills its
executor, and with it the shuffle output that its stage reads: Spark runs that stage again. DIRECTORY gets a
file for each attempt.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyspark
from pyspark import TaskContext

from tuplewire.spark.session import local_session


def happens(directory: Path, what: str) -> bool:
    """Whether this is the first time, in any process."""
    try:
        (directory / what).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def parent_of(process_id: int) -> int:
    """Return the process that has started another."""
    stat = Path(f"/proc/{process_id}/stat").read_text(encoding="utf-8")
    return int(stat.rpartition(")")[2].split()[1])


def main(address: str, directory: str) -> None:
    """Write, and say what happened."""
    place = Path(directory)

    def failing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        (place / f"attempt-{context.partitionId()}-{context.taskAttemptId()}").touch()
        for number, batch in enumerate(batches):
            yield batch
            if number < 10:
                continue  # enough for what buffers there are: the writer has had some
            if context.partitionId() == 0 and happens(place, "failed"):
                raise RuntimeError("this attempt is to fail")
            if context.partitionId() == 1 and happens(place, "killed"):
                # A worker is forked by a daemon, and that is the JVM's child.
                os.kill(parent_of(os.getppid()), signal.SIGKILL)

    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    os.environ["SPARK_SCALA_VERSION"] = "2.13"
    conf = {
        "spark.master": "local-cluster[2,1,900]",
        "spark.executor.memory": "512m",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "50",
    }
    with local_session("attempts", conf=conf) as spark:
        (
            spark.range(0, 4000, 1, 2)
            .selectExpr("cast(id % 4 + 1 as int) as task", "concat(id, repeat(' ', 2000)) as message")
            .repartition(4)
            .mapInArrow(failing, "task int, message string")
            .write.format("tuplewire")
            .mode("append")
            .option("address", address)
            .option("topology", "spark")
            .option("atomic", "true")
            .save()
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
