"""Workers next to executors that Spark decommissions and starts, and the tasks that follow them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from helpers.drivers import TOPOLOGY, Kubelet, beside_its_worker, local_cluster, report, run_driver
from pyspark.sql import SparkSession

from tuplewire import TaskMessageBatch
from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import ConfigError
from tuplewire.membership import Membership
from tuplewire.spark import ClientHandle, membership
from tuplewire.spark.executors import Executors
from tuplewire_service.testing import eventually

pytestmark = pytest.mark.spark

TASKS = range(1, 9)
MESSAGES = 500
"""Messages for each task, sent by each of two executors."""
SETTLES = 60.0


def decommission(spark: SparkSession, executor: str) -> None:
    """Decommission an executor, as Spark does before its pod is removed."""
    context = spark.sparkContext
    assert context._gateway is not None
    jvm = context._gateway.jvm
    info = jvm.org.apache.spark.scheduler.ExecutorDecommissionInfo("test", jvm.scala.Option.empty())
    context._jsc.sc().schedulerBackend().decommissionExecutor(executor, info, False, False)


def placed(workers: Membership) -> dict[str, int]:
    """Return the number of tasks of each worker."""
    return {each.worker_id: len(each.tasks) for each in workers.status().workers if each.phase == "joined"}


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


@pytest.mark.slow
@pytest.mark.long
def test_executors_come_and_go(tmp_path: Path) -> None:
    """A decommissioned executor loses no message, and the executor that follows gets its share of tasks."""
    found = run_driver(__file__, tmp_path, folder=tmp_path)
    assert found["start"] == {"executor-0": 4, "executor-1": 4}
    assert found["names"] == ["executor 0", "executor 1"]
    assert found["go on"] == ["1"]
    assert found["later"] == {"executor-1": 4, "executor-2": 4}
    assert found["queued"] == found["sent"] == 2 * 8 * 500
    assert found["ended"] == [0]
    assert found["version"]


def test_local_mode_has_no_executors(spark: SparkSession) -> None:
    """Without executors, the error names the option to use instead."""
    with pytest.raises(ConfigError, match="workers="):
        membership(spark, range(4))


def main(folder: str) -> None:
    """Start and stop executors while messages are sent to their workers."""
    home = Path(folder)
    conf = {"spark.decommission.enabled": "true"}
    with local_cluster("membership", home / "work", conf) as spark, ExitStack() as stack:
        kubelet = Kubelet(spark, home, drain_seconds=2)
        stack.callback(kubelet.end)
        workers = stack.enter_context(
            membership(
                spark,
                TASKS,
                worker_address=kubelet.worker_of,
                topology=TOPOLOGY,
                min_workers=2,
                timeout=SETTLES,
                poll_seconds=0.2,
            )
        )
        report("start", placed(workers))
        report("names", sorted(each.name for each in workers.status().workers))
        spark.sparkContext.pythonExec = beside_its_worker(
            sys.executable, home / "python-beside-its-worker", f"{home}/executor-EXECUTOR/worker-0.sock"
        )
        report("sent", sum(spark.sparkContext.parallelize(range(2), 2).mapPartitions(send).collect()))
        decommission(spark, "0")
        report("go on", [each.id for each in Executors(spark)()])
        eventually(lambda: kubelet.exit_codes, SETTLES, "the executor and its worker have ended")
        workers.wait(2, SETTLES)  # Spark has started another executor
        report("later", placed(workers))
        report("queued", queued(workers))
        report("ended", kubelet.exit_codes)
        with ControlClient(workers.address) as control:
            report("version", control.status().assignment_version == workers.status().version)


if __name__ == "__main__":
    main(*sys.argv[1:])
