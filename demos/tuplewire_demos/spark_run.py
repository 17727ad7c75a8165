"""Runs Spark and the workers for the demos, and a topology on them.

Used by the demos and their commands. Owns the session and the workers. Not thread-safe. See README.md.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from tuplewire.connection.control_client import ControlClient
from tuplewire.processes.worker_processes import WorkerProcesses
from tuplewire.session.ledger import LedgerSnapshot
from tuplewire_demos.local_session import FAST_START, local_session
from tuplewire_demos.report import Progress, wait_until_settled
from tuplewire_service.command.status_report import ledger_of
from tuplewire_topology import Topology
from tuplewire_topology.spark import TopologyResult, run_topology

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


SKIPPED_COLUMNS = "offset bigint, problem string, text string"
"""The schema of skipped lines."""


@contextmanager
def spark_and_workers(
    topology: str,
    arguments: argparse.Namespace,
    progress: Progress,
    *,
    n_tasks: int = 0,
    jvm: str = FAST_START,
) -> Iterator[tuple[SparkSession, list[str]]]:
    """Yield Spark and the addresses of the workers, which start in parallel. arguments: the flags.

    n_tasks: the tasks 0 to n_tasks - 1 are assigned to the workers in turn. jvm: see local_session().
    """
    progress.start_stage(f"Starting Spark, and {arguments.workers} worker(s) ...")
    cores = arguments.cores or max(2, os.cpu_count() or 1)
    # Messages remain only after a failed run, and then no consumer receives them.
    flags = [f"--transport={arguments.transport}", "--drain-seconds=1"]
    # Silence gRPC's connection messages on the user's terminal.
    conf = {"spark.executorEnv.GRPC_VERBOSITY": "ERROR"}
    with ExitStack() as stack:
        workers = WorkerProcesses(arguments.workers, topology, flags=flags)
        stack.callback(workers.stop)
        # In parallel with Spark, which takes longer to start. This process connects to the workers only
        # afterwards, because Spark forks, and a fork is safer before gRPC is in use.
        starting = stack.enter_context(ThreadPoolExecutor(1)).submit(workers.start)
        spark = stack.enter_context(local_session(f"tuplewire-{topology}", cores=cores, conf=conf, jvm=jvm))
        starting.result()
        if n_tasks:
            tasks = range(n_tasks)
            workers.assign({index: tasks[index :: arguments.workers] for index in range(arguments.workers)})
        for each in workers.endpoints:
            progress.note(f"Metrics of {each.worker_id} while it runs: {each.metrics_url}")
        yield spark, [each.unix_address for each in workers.endpoints]
        progress.show_wait("Ending Spark and the workers ...")


def run_on_spark(
    spark: SparkSession,
    topology: Topology,
    workers: Sequence[str],
    outputs: Mapping[str, str | StructType],
    *,
    name: str,
    pending: int,
    progress: Progress,
) -> tuple[TopologyResult, dict[str, LedgerSnapshot]]:
    """Run a topology in a PySpark task for each core; return its result and the workers' ledgers."""
    conf = {"topology.workers": cores_of(spark), "topology.max.spout.pending": pending}
    result = run_topology(
        spark,
        topology,
        conf=conf,
        outputs=outputs,
        workers=workers,
        name=name,
        progress=lambda update: progress.show_line(str(update)),
    )
    return result, ledgers_of(workers)


def ledgers_of(workers: Sequence[str]) -> dict[str, LedgerSnapshot]:
    """Return the ledgers of workers, by id, when nothing is pending, or after 10 s."""
    with ExitStack() as stack:
        controls = [stack.enter_context(ControlClient(address)) for address in workers]

        def ledgers() -> dict[str, LedgerSnapshot]:
            statuses = [control.status() for control in controls]
            return {each.worker_id: ledger_of(each.ledger) for each in statuses}

        return wait_until_settled(ledgers)


def cores_of(spark: SparkSession) -> int:
    """Return the number of tasks that a local session runs at the same time."""
    return spark.sparkContext.defaultParallelism
