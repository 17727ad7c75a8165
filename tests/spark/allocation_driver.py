"""A driver whose executors Spark ends and starts under a query: python allocation_driver.py.

Reads settings as JSON from its input; prints what has come out as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pyspark
from membership_driver import Kubelet  # type: ignore[import-not-found]  # beside this script
from pyspark.sql import SparkSession

from tuplewire import Client, TaskMessageBatch
from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import RefusedError, UnreachableError
from tuplewire.spark import membership
from tuplewire.spark.executors import Executors
from tuplewire_demos.local_session import local_session
from tuplewire_service.launching.local_workers import LocalWorkers
from tuplewire_service.testing import eventually

TOPOLOGY = "spark"
READ, WRITTEN = range(1, 5), range(5, 9)
WAITING = 300
"""So many messages of each task are on their way at most."""
LEAVE = 3
"""So many executors are to go under the query."""
SECONDS = 240.0
DRAIN_SECONDS = 30


class Consumer(threading.Thread):
    """Takes a task's messages, wherever it is."""

    def __init__(self, address: str, task: int) -> None:
        super().__init__()
        self.got: list[int] = []
        self.done = threading.Event()
        self._address = address
        self._task = task

    def run(self) -> None:
        """Take them until done."""
        while not self.done.is_set():
            try:
                with Client(self._owner(), topology=TOPOLOGY) as client:
                    for batch in client.recv([self._task], timeout=1):
                        self.got += [int(each.message) for each in batch]
            except (RefusedError, UnreachableError, TimeoutError):
                continue  # the task is elsewhere by now, or nothing came

    def _owner(self) -> str:
        with ControlClient(self._address) as control:
            assignment = control.assignment()
            assert assignment is not None
            return next(each.address for each in assignment.workers if self._task in each.tasks)


def run(spark: SparkSession, home: Path, stack: ExitStack) -> dict[str, object]:
    """Send all the while: Spark starts an executor in each micro-batch, and ends one after it."""
    executors = Executors(spark)
    kubelet = Kubelet(spark, home, DRAIN_SECONDS)
    stack.callback(kubelet.end)
    (home / "driver").mkdir()
    flags = ["--worker-id=driver"]
    own = stack.enter_context(
        LocalWorkers(1, TOPOLOGY, directory=home / "driver", flags=flags, drain_seconds=2)
    )
    address = own.endpoints[0].address

    def workers() -> dict[str, str]:
        places = [(kubelet.worker_of(each), f"executor {each.id}") for each in executors()]
        return {address: "the driver", **{place: name for place, name in places if place}}

    stack.enter_context(
        membership(
            spark,
            [*READ, *WRITTEN],
            workers=workers,
            topology=TOPOLOGY,
            at_least=2,
            timeout=SECONDS,
            poll_seconds=0.2,
        )
    )
    where = {"address": address, "topology": TOPOLOGY}
    query = (
        spark.readStream.format("tuplewire")
        .options(**where, tasks="1-4")
        .load()
        # A second for each task of a micro-batch: together they are too much for one executor.
        .selectExpr("task + 4 as task", "message", "java_method('java.lang.Thread', 'sleep', 4L) as slept")
        .drop("slept")
        .writeStream.format("tuplewire")
        .options(**where, checkpointLocation=str(home / "checkpoint"))
        .trigger(processingTime="12 seconds")  # longer than executorIdleTimeout, with what a task takes
        .start()
    )
    stack.callback(query.stop)
    consumers = {task: Consumer(address, task) for task in WRITTEN}

    def end_consumers() -> None:
        for each in consumers.values():
            each.done.set()
            each.join()

    for each in consumers.values():
        each.start()
    stack.callback(end_consumers)
    client = stack.enter_context(Client(address, topology=TOPOLOGY))
    sent = dict.fromkeys(READ, 0)

    def enough_have_gone() -> bool:
        assert query.isActive, query.exception()
        for task in READ:
            if count := len(consumers[task + 4].got) + WAITING - sent[task]:
                payloads = [str(number).encode() for number in range(sent[task], sent[task] + count)]
                client.send(TaskMessageBatch.from_columns(task, payloads))
                sent[task] += count
        return len(kubelet.exit_codes) >= LEAVE

    eventually(enough_have_gone, SECONDS, f"{LEAVE} executors have gone, with their workers")

    def all_has_come() -> bool:
        assert query.isActive, query.exception()
        return all(len(consumers[task + 4].got) >= sent[task] for task in READ)

    eventually(all_has_come, SECONDS, "all has come")
    return {
        "sent": list(sent.values()),
        "got": [each.got for each in consumers.values()],
        "exit codes": kubelet.exit_codes,
    }


def main() -> None:
    """Run it on one or two executors, as Spark likes."""
    home = Path(json.load(sys.stdin)["home"])
    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    os.environ["SPARK_SCALA_VERSION"] = "2.13"
    os.environ["SPARK_WORKER_DIR"] = str(home / "work")
    conf = {
        "spark.master": "local-cluster[2,1,900]",
        "spark.executor.memory": "512m",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.decommission.enabled": "true",
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.minExecutors": "1",
        "spark.dynamicAllocation.maxExecutors": "2",
        "spark.dynamicAllocation.executorIdleTimeout": "3s",
    }
    with local_session("dynamic allocation", conf=conf) as spark, ExitStack() as stack:
        print(json.dumps(run(spark, home, stack)), flush=True)


if __name__ == "__main__":
    main()
