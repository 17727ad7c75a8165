"""Exactly one attempt: a DataFrame is written while tasks and executors fail.

The driver runs two executors. It writes the numbers to 3999: one attempt of a partition fails halfway, and an
attempt of another partition kills its executor, and with it the shuffle output of an earlier stage, which
Spark runs again. Then it writes the numbers to 5999: an attempt is so slow that Spark makes a speculative
copy of it. Each attempt makes a file.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from helpers.drivers import run_driver, spark_home
from helpers.topology import collect
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from tuplewire import Client
from tuplewire.connection.control_client import ControlClient
from tuplewire_demos.local_session import local_session

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]

TASKS = {0: [1, 2], 1: [3, 4]}
HOSTS = ("127.0.0.1", "127.0.0.2")
COPY_SECONDS = 100.0


def happens(directory: Path, what: str) -> bool:
    """Return True for the first call in any process."""
    try:
        (directory / what).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def begins(place: Path, job: str) -> tuple[int, int]:
    """Record an attempt, and return its partition and its number."""
    context = TaskContext.get()
    assert context is not None
    (place / f"{job}-{context.partitionId()}-{context.taskAttemptId()}").touch()
    return context.partitionId(), context.attemptNumber()


def numbers(spark: SparkSession, first: int, beyond: int) -> DataFrame:
    """Return numbers for four tasks, in two partitions."""
    return spark.range(first, beyond, 1, 2).selectExpr(
        "cast(id % 4 + 1 as int) as task", "concat(id, repeat(' ', 2000)) as message"
    )


def write(frame: DataFrame, address: str) -> None:
    """Write rows exactly once."""
    where = {"address": address, "topology": "spark", "deliveryGuarantee": "exactlyOnce"}
    frame.write.format("tuplewire").mode("append").options(**where).save()


def fail(spark: SparkSession, address: str, place: Path) -> None:
    """Write while an attempt and an executor fail."""

    def failing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        partition, _ = begins(place, "failing")
        for number, batch in enumerate(batches):
            yield batch
            if number < 10:
                continue  # enough batches to fill the buffers: the writer has received some
            if partition == 0 and happens(place, "failed"):
                raise RuntimeError("this attempt is to fail")
            if partition == 1 and happens(place, "killed"):
                # A Python worker is forked by a daemon, and the daemon is a child of the JVM.
                stat = Path(f"/proc/{os.getppid()}/stat").read_text(encoding="utf-8")
                os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGKILL)

    write(numbers(spark, 0, 4000).repartition(4).mapInArrow(failing, "task int, message string"), address)


def speculate(spark: SparkSession, address: str, place: Path) -> None:
    """Write while an attempt waits for its speculative copy, and both continue."""

    def wait_for(pattern: str) -> None:
        deadline = time.monotonic() + COPY_SECONDS
        while not list(place.glob(pattern)):
            assert time.monotonic() < deadline, f"{pattern} does not come"
            time.sleep(0.01)

    def slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        partition, attempt = begins(place, "slow")
        for batch in batches:
            yield batch
            if partition == 0 and attempt:
                (place / "copied").touch()
            # Spark compares with the other partition, which must not end before the original has started.
            wait_for("copied" if partition == 0 else "slow-0-*")

    write(numbers(spark, 4000, 6000).mapInArrow(slow, "task int, message string"), address)


@contextmanager
def cluster(spark: SparkSession) -> Iterator[str]:
    """Run Spark's master and two workers, on different hosts as speculation requires; yield the address."""
    jvm: Any = spark.sparkContext._jvm
    deploy = jvm.org.apache.spark.deploy
    none = getattr(getattr(jvm.scala, "None$"), "MODULE$")
    conf = jvm.org.apache.spark.SparkConf(False)
    master = deploy.master.Master.startRpcEnvAndEndpoint("127.0.0.1", 0, 0, conf)
    url = f"spark://{master._1().address().toString().rpartition('/')[2]}"
    urls = spark.sparkContext._gateway.new_array(jvm.java.lang.String, 1)  # type: ignore[union-attr]
    urls[0] = url
    running = [master._1()]
    for host in HOSTS:
        directory = os.environ["SPARK_WORKER_DIR"]
        running.append(
            deploy.worker.Worker.startRpcEnvAndEndpoint(host, 0, 0, 1, 900, urls, directory, none, conf, none)
        )
    yield url
    for each in reversed(running):
        each.shutdown()


def test_one_attempt_of_each_partition_is_seen(launch: Any, tmp_path: Path) -> None:
    """Each row arrives once despite a failed task, a killed executor, a repeated stage and a slow attempt."""
    with launch("spark", TASKS) as running:
        run_driver(__file__, running.endpoints[0].address, tmp_path)
        for partition in ("failing-0", "failing-1", "slow-0"):
            assert len(list(tmp_path.glob(f"{partition}-*"))) > 1, f"{partition} had one attempt only"
        got: list[int] = []
        for worker, tasks in zip(running.endpoints, TASKS.values(), strict=True):
            with ControlClient(worker.address) as control:
                assert [each.queued_messages for each in control.status().tasks] == [1500, 1500]
            with (
                Client(worker.address, topology="spark") as client,
                client.recv(tasks, timeout=20) as batches,
            ):
                got += [int(payload) for _, payload in collect(batches, 3000)]
    assert sorted(got) == list(range(6000))


def main(address: str, directory: str) -> None:
    """Write with failing and with slow attempts."""
    place = Path(directory)
    spark_home(place / "work")
    os.environ["PYSPARK_PYTHON"] = sys.executable  # local_session does not create the second session
    conf = {
        "spark.executor.memory": "512m",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "50",
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.quantile": "0.5",
    }
    with local_session("attempts", cores=1, conf=conf) as first, cluster(first) as master:
        first.stop()
        spark = SparkSession.builder.master(master).getOrCreate()
        fail(spark, address, place)
        speculate(spark, address, place)
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
