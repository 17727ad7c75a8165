"""A driver with dynamic allocation of executors under a query: python allocation_driver.py.

Reads settings as JSON from its standard input, and prints the result as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pyspark
from membership_driver import Kubelet  # type: ignore[import-not-found]  # next to this script
from pyspark.sql import SparkSession

from tuplewire import Client, TaskMessageBatch
from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import RefusedError, UnreachableError
from tuplewire.processes.worker_processes import WorkerProcesses
from tuplewire.spark import membership
from tuplewire.spark.executors import Executors
from tuplewire_demos.local_session import local_session
from tuplewire_service.testing import eventually

TOPOLOGY = "spark"
READ, WRITTEN = range(1, 5), range(5, 9)
MESSAGES = 300
"""Number of messages sent to each task at a time."""
ROUNDS = 3
SECONDS = 180.0
DRAIN_SECONDS = 25


class Gate:
    """Holds the tasks of a micro-batch in their executors while the gate is closed."""

    def __init__(self, home: Path) -> None:
        self._open, self._held = home / "open", home / "held"

    def open(self) -> None:
        """Let the held tasks continue."""
        self._open.touch()

    def close(self) -> None:
        """Hold all tasks that arrive from now on."""
        self._held.unlink(missing_ok=True)
        self._open.unlink(missing_ok=True)

    @property
    def holds(self) -> bool:
        """True if a task has arrived since the gate was closed."""
        return self._held.exists()

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Send the rows of each read task to the written task at the same position."""
        for batch in batches:
            while not self._open.exists():
                self._held.touch()
                time.sleep(0.1)
            tasks = pa.array([task + len(READ) for task in batch["task"].to_pylist()], pa.int32())
            yield pa.RecordBatch.from_arrays([tasks, batch["message"]], ["task", "message"])


class Consumer(threading.Thread):
    """Consumes the messages of a task at its current owner."""

    def __init__(self, address: str, task: int) -> None:
        super().__init__()
        self.got: list[int] = []
        self.done = threading.Event()
        self._address = address
        self._task = task

    def run(self) -> None:
        """Consume messages until `done` is set."""
        while not self.done.is_set():
            try:
                with Client(self._owner(), topology=TOPOLOGY) as client:
                    for batch in client.recv([self._task], timeout=1):
                        self._take(batch)
            except (RefusedError, UnreachableError, TimeoutError):
                continue  # the task has moved, or no message arrived

    def _take(self, batch: TaskMessageBatch) -> None:
        """Record messages, except redelivered messages that were recorded before."""
        for group in batch.groups:
            numbers = map(int, group.payloads())
            self.got += [each for each in numbers if not (group.redelivered and each in self.got)]

    def _owner(self) -> str:
        with ControlClient(self._address) as control:
            assignment = control.assignment()
            assert assignment is not None
            return next(each.address for each in assignment.workers if self._task in each.tasks)


def run(spark: SparkSession, home: Path, stack: ExitStack) -> dict[str, object]:
    """Run micro-batches for two executors and for one, so that Spark starts an executor and removes it."""
    executors = Executors(spark)
    kubelet = Kubelet(spark, home, DRAIN_SECONDS)
    stack.callback(kubelet.end)
    (home / "driver").mkdir()
    flags = ["--worker-id=driver"]
    own = stack.enter_context(
        WorkerProcesses(1, TOPOLOGY, directory=home / "driver", flags=flags, drain_seconds=2)
    )
    address = own.endpoints[0].address

    def workers() -> dict[str, str]:
        places = [(kubelet.worker_of(each), f"executor {each.id}") for each in executors()]
        return {address: "the driver", **{place: name for place, name in places if place}}

    members = stack.enter_context(
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
    gate = Gate(home)
    query = (
        spark.readStream.format("tuplewire")
        .options(**where, tasks="1-4")
        .load()
        .select("task", "message")
        .mapInArrow(gate, "task int, message binary")
        .writeStream.format("tuplewire")
        .options(**where, checkpointLocation=str(home / "checkpoint"))
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

    def send(tasks: Iterable[int], count: int) -> None:
        for task in tasks:
            payloads = [str(number).encode() for number in range(sent[task], sent[task] + count)]
            client.send(TaskMessageBatch.from_columns(task, payloads))
            sent[task] += count

    def until(condition: Callable[[], object], what: str) -> None:
        def holds() -> object:
            assert query.isActive, str(query.exception())
            return condition()

        print(what, file=sys.stderr, flush=True)
        eventually(holds, SECONDS, what)

    def all_has_come() -> bool:
        return all(len(consumers[task + 4].got) >= sent[task] for task in READ)

    for gone in range(ROUNDS):
        gate.close()
        send(READ, MESSAGES)
        until(lambda: members.status().joined == 3, "a micro-batch of four tasks has two executors")
        gate.open()
        until(all_has_come, "all has come through both")
        gate.close()
        send(READ[:1], 1)
        until(lambda: gate.holds, "a micro-batch of one task is under way")
        send(READ, MESSAGES)
        until(lambda gone=gone: len(kubelet.exit_codes) > gone, "the other executor has gone")  # type: ignore[misc]
        gate.open()
        until(all_has_come, "all has come through the one that is left")
    return {
        "sent": list(sent.values()),
        "got": [each.got for each in consumers.values()],
        "exit codes": kubelet.exit_codes,
    }


def main() -> None:
    """Run the query on one or two executors, as Spark decides."""
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
