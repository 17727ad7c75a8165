"""A streaming query while executors start, stop and are killed, each with its worker."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest
from helpers import queries
from helpers.consumers import FollowingConsumer
from helpers.drivers import DRIVER_SECONDS, TOPOLOGY, Kubelet, local_cluster, report, run_driver
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tuplewire import Client, TaskMessageBatch
from tuplewire.connection.control_client import ControlClient
from tuplewire.processes.worker_processes import WorkerProcesses
from tuplewire.spark import membership
from tuplewire.spark.executors import Executors
from tuplewire_service.testing import eventually

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]

READ, WRITTEN = range(1, 5), range(5, 9)
MESSAGES = 300
"""Number of messages sent to each task at a time."""
ROUNDS = 2
SECONDS = DRIVER_SECONDS / 2
DRAIN_SECONDS = 25


def test_executors_come_and_go_under_a_query(tmp_path: Path) -> None:
    """Each message arrives once, in order per task. Another executor reads the messages of a killed one."""
    found = run_driver(__file__, tmp_path, folder=tmp_path)
    assert found["got"] == found["sent"] == [2 * ROUNDS * MESSAGES + extra for extra in (ROUNDS, 0, 0, 0)]
    assert found["in order"]
    assert found["exit codes"] == [0] * 2 * ROUNDS, "the workers of so many executors have dropped nothing"


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


class Consumer(FollowingConsumer):
    """Consumes the messages of a task, except redelivered messages that were recorded before."""

    def take(self, batch: TaskMessageBatch) -> None:
        for group in batch.groups:
            numbers = map(int, group.payloads())
            self.got += [each for each in numbers if not (group.redelivered and each in self.got)]


class Flow:
    """Numbered messages to the tasks that a query reads, and consumers of the tasks that it writes."""

    def __init__(self, query: StreamingQuery, address: str, stack: ExitStack) -> None:
        self.sent = dict.fromkeys(READ, 0)
        self._query = query
        self._address = address
        self._client = stack.enter_context(Client(address, topology=TOPOLOGY))
        self.consumers = [Consumer(task, lambda task=task: self._owner(task), TOPOLOGY) for task in WRITTEN]  # type: ignore[misc]
        for each in self.consumers:
            stack.callback(each.stop)

    def _owner(self, task: int) -> str:
        with ControlClient(self._address) as control:
            assignment = control.get_assignment()
            assert assignment is not None
            return next(each.address for each in assignment.workers if task in each.tasks)

    def send(self, tasks: Iterable[int], count: int) -> None:
        """Send the next numbers to tasks."""
        for task in tasks:
            payloads = [b"%d" % number for number in range(self.sent[task], self.sent[task] + count)]
            self._client.send(TaskMessageBatch.from_columns(task, payloads))
            self.sent[task] += count

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for a condition while the query is active."""

        def holds() -> object:
            assert self._query.isActive, str(self._query.exception())
            return condition()

        print(what, file=sys.stderr, flush=True)
        eventually(holds, SECONDS, what)

    def until_all_has_come(self, through: str) -> None:
        """Wait until the consumers have all messages."""
        self.until(
            lambda: all(
                len(each.got) >= sent for each, sent in zip(self.consumers, self.sent.values(), strict=True)
            ),
            f"all has come through {through}",
        )


def kill_an_executor(spark: SparkSession) -> None:
    """Kill the oldest executor of a driver."""
    assert spark.sparkContext._gateway is not None
    jvm = spark.sparkContext._gateway.proc.pid
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue  # the process has exited
        if parent == jvm and b"CoarseGrainedExecutorBackend" in command:
            found.append(int(folder.name))
    os.kill(min(found), signal.SIGKILL)


def run(spark: SparkSession, home: Path, stack: ExitStack) -> None:
    """Run micro-batches for two executors and for one, so that Spark starts an executor and removes it."""
    executors = Executors(spark)
    kubelet = Kubelet(spark, home, DRAIN_SECONDS)
    stack.callback(kubelet.end)
    (home / "driver").mkdir()
    own = stack.enter_context(
        WorkerProcesses(1, TOPOLOGY, directory=home / "driver", flags=["--worker-id=driver"], drain_seconds=2)
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
            min_workers=2,
            timeout=SECONDS,
            poll_seconds=0.2,
        )
    )
    where = {"address": address, "topology": TOPOLOGY}
    gate = Gate(home)
    read = queries.stream(spark, {**where, "tasks": "1-4"}).select("task", "message")
    rows = read.mapInArrow(gate, "task int, message binary")
    query = queries.start_sink(rows, where, home / "checkpoint")
    stack.callback(query.stop)
    flow = Flow(query, address, stack)

    def both_are_there() -> bool:
        return len(executors()) == 2 and members.status().joined_count == 3

    for number in range(ROUNDS):
        gone = 2 * number
        gate.close()
        flow.send(READ, MESSAGES)
        flow.until(
            lambda: gate.holds and members.status().joined_count == 3,
            "a micro-batch of four tasks has two executors",
        )
        kill_an_executor(spark)
        flow.until(lambda gone=gone: len(kubelet.exit_codes) > gone, "an executor was killed")  # type: ignore[misc]
        flow.until(both_are_there, "another executor takes its place")
        gate.open()
        flow.until_all_has_come("both")
        gate.close()
        flow.send(READ[:1], 1)
        flow.until(lambda: gate.holds, "a micro-batch of one task is under way")
        flow.send(READ, MESSAGES)
        flow.until(lambda gone=gone: len(kubelet.exit_codes) > gone + 1, "the other executor has gone")  # type: ignore[misc]
        gate.open()
        flow.until_all_has_come("the one that is left")
    report("sent", list(flow.sent.values()))
    report("got", [len(each.got) for each in flow.consumers])
    report("in order", all(each.got == list(range(len(each.got))) for each in flow.consumers))
    report("exit codes", kubelet.exit_codes)


def main(folder: str) -> None:
    """Run the query on one or two executors, as Spark decides."""
    home = Path(folder)
    conf = {
        "spark.decommission.enabled": "true",
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.minExecutors": "1",
        "spark.dynamicAllocation.maxExecutors": "2",
        "spark.dynamicAllocation.executorIdleTimeout": "3s",
    }
    with local_cluster("dynamic allocation", home / "work", conf) as spark, ExitStack() as stack:
        run(spark, home, stack)


if __name__ == "__main__":
    main(*sys.argv[1:])
