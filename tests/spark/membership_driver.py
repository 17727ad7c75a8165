"""A separate driver with executors that start and stop, each with a worker: python membership_driver.py.

Reads settings as JSON from its standard input, and prints a line of JSON, [name, value], for each result.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from tuplewire import TaskMessageBatch
from tuplewire.connection.control_client import ControlClient
from tuplewire.membership import Membership
from tuplewire.processes.worker_processes import WorkerProcesses
from tuplewire.spark import ClientHandle, membership
from tuplewire.spark.executors import Executors, SparkExecutor
from tuplewire_demos.local_session import local_session
from tuplewire_service.testing import eventually

TOPOLOGY = "spark"
TASKS = range(1, 9)
MESSAGES = 500
"""Messages for each task, sent by each of two executors."""
SETTLES = 60.0


class Kubelet:
    """Starts a worker next to each executor and stops it after the executor, as a kubelet does a sidecar."""

    def __init__(self, spark: SparkSession, home: Path, drain_seconds: float) -> None:
        self._home = home
        self._drain_seconds = drain_seconds
        self._executors = Executors(spark)
        self._workers: dict[str, WorkerProcesses] = {}
        self.exit_codes: list[int] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._main)
        self._thread.start()

    def _main(self) -> None:
        while not self._stop.wait(0.2):
            running = {each.id for each in self._executors()}
            for number in running - self._workers.keys():
                flags = [f"--worker-id=executor-{number}"]
                directory = self._home / f"executor-{number}"
                directory.mkdir()
                workers = WorkerProcesses(
                    1, TOPOLOGY, directory=directory, flags=flags, drain_seconds=self._drain_seconds
                )
                workers.start()
                self._workers[number] = workers
            for number in self._workers.keys() - running:
                self.exit_codes += self._workers.pop(number).stop()

    def worker_of(self, executor: SparkExecutor) -> str | None:
        """Return the address of the worker next to an executor, or None if it has not started."""
        workers = self._workers.get(executor.id)
        return workers.endpoints[0].address if workers is not None else None

    def end(self) -> None:
        """Stop all workers."""
        self._stop.set()
        self._thread.join()
        for workers in self._workers.values():
            workers.stop()


def decommission(spark: SparkSession, executor: str) -> None:
    """Decommission an executor, as Spark does before its pod is removed."""
    context = spark.sparkContext
    assert context._gateway is not None
    jvm = context._gateway.jvm
    info = jvm.org.apache.spark.scheduler.ExecutorDecommissionInfo("test", jvm.scala.Option.empty())
    context._jsc.sc().schedulerBackend().decommissionExecutor(executor, info, False, False)


def told(name: str, value: object) -> None:
    """Print a result for the test."""
    print(json.dumps([name, value]), flush=True)


def placed(workers: Membership) -> dict[str, int]:
    """Return the number of tasks of each worker."""
    return {each.worker_id: len(each.tasks) for each in workers.status().workers if each.phase == "joined"}


def beside_its_worker(home: Path) -> str:
    """Return an interpreter with the address of the worker next to its executor, as a sidecar's is."""
    program = home / "python-beside-its-worker"
    address = f'"unix://{home}/executor-$(basename "$PWD")/worker-0.sock"'
    program.write_text(
        f'#!/bin/sh\nTUPLEWIRE_ADDRESS={address} exec {sys.executable} "$@"\n', encoding="utf-8"
    )
    program.chmod(0o755)
    return str(program)


def send(numbers: Iterable[int]) -> Iterator[int]:
    """Send messages to all tasks, in an executor through the worker next to it."""
    with ClientHandle(topology=TOPOLOGY) as client:
        for _ in numbers:
            client.send(TaskMessageBatch.from_columns([*TASKS] * MESSAGES, [b"."] * len(TASKS) * MESSAGES))
            yield len(TASKS) * MESSAGES


def queued(workers: Membership) -> int:
    """Count the queued messages of all workers."""
    count = 0
    for each in workers.status().workers:
        with ControlClient(each.address) as control:
            count += sum(task.queued_messages for task in control.status().tasks)
    return count


def main() -> None:
    """Start and stop executors while messages are sent to their workers."""
    home = Path(json.load(sys.stdin)["home"])
    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    os.environ["SPARK_SCALA_VERSION"] = "2.13"
    os.environ["SPARK_WORKER_DIR"] = str(home / "work")
    conf = {
        "spark.master": "local-cluster[2,1,900]",
        "spark.executor.memory": "512m",
        "spark.decommission.enabled": "true",
    }
    with local_session("membership", conf=conf) as spark, ExitStack() as stack:
        kubelet = Kubelet(spark, home, drain_seconds=2)
        stack.callback(kubelet.end)
        workers = stack.enter_context(
            membership(
                spark,
                TASKS,
                worker_of=kubelet.worker_of,
                topology=TOPOLOGY,
                at_least=2,
                timeout=SETTLES,
                poll_seconds=0.2,
            )
        )
        told("start", placed(workers))
        told("names", sorted(each.name for each in workers.status().workers))
        spark.sparkContext.pythonExec = beside_its_worker(home)
        told("sent", sum(spark.sparkContext.parallelize(range(2), 2).mapPartitions(send).collect()))
        decommission(spark, "0")
        told("go on", [each.id for each in Executors(spark)()])
        eventually(lambda: kubelet.exit_codes, SETTLES, "the executor and its worker have ended")
        workers.wait(2, SETTLES)  # Spark has started another executor
        told("later", placed(workers))
        told("queued", queued(workers))
        told("ended", kubelet.exit_codes)
        with ControlClient(workers.address) as control:
            told("version", control.status().assignment_version == workers.status().version)


if __name__ == "__main__":
    main()
