"""A separate driver that kills its executors while they read: python killed_executors_driver.py.

Reads settings as JSON from its standard input, and prints the result as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pyspark
from pyspark.sql import DataFrame, SparkSession

from tuplewire.spark.executors import Executors
from tuplewire_demos.local_session import local_session
from tuplewire_service.testing import eventually

BATCH = 300
KILLED_AT = (2, 5)
"""The micro-batches after which an executor is killed."""


def executors(jvm: int) -> list[int]:
    """Return the process ids of the executors of a driver's JVM, the oldest first."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue  # the process has exited
        if parent == jvm and b"CoarseGrainedExecutorBackend" in command:
            found.append(int(folder.name))
    return sorted(found)


def run(spark: SparkSession, settings: dict[str, str]) -> dict[str, object]:
    """Read until all messages have arrived; kill an executor twice while its tasks run."""
    batches: dict[int, list[int]] = {}
    killed: list[int] = []
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    tracker = spark.sparkContext.statusTracker()

    def take(frame: DataFrame, batch: int) -> None:
        batches[batch] = [int(row.message) for row in frame.collect()]

    query = (
        spark.readStream.format("tuplewire")
        .options(address=settings["address"], topology=settings["topology"], tasks=settings["tasks"])
        .option("maxMessagesPerTrigger", BATCH)
        .load()
        # A task then runs for some tenths of a second, and can be killed while it reads.
        .selectExpr("message", "java_method('java.lang.Thread', 'sleep', 4L) as slept")
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", settings["checkpoint"])
        .start()
    )

    def is_reading() -> bool:
        infos = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        return any(info.numActiveTasks for info in infos if info)

    for at in KILLED_AT:
        eventually(lambda at=at: len(batches) > at and is_reading(), 120)  # type: ignore[misc]
        victim = executors(gateway.proc.pid)[0]
        os.kill(victim, signal.SIGKILL)
        killed.append(victim)
    count = int(settings["count"])
    eventually(lambda: sum(map(len, batches.values())) >= count or not query.isActive, 200)
    error = query.exception()
    query.stop()
    return {
        "error": str(error) if error else "",
        "executors": max(int(each.id) for each in Executors(spark)()) + 1,
        "killed": len(killed),
        "numbers": [number for batch in sorted(batches) for number in batches[batch]],
    }


def main() -> None:
    """Run the query on two executors in separate JVMs."""
    settings = json.load(sys.stdin)
    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    os.environ["SPARK_SCALA_VERSION"] = "2.13"
    os.environ["SPARK_WORKER_DIR"] = settings["work"]
    conf = {
        "spark.master": "local-cluster[2,1,900]",
        "spark.executor.memory": "512m",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    with local_session("killed executors", conf=conf) as spark:
        print(json.dumps(run(spark, settings)), flush=True)


if __name__ == "__main__":
    main()
