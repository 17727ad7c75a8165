"""The runtime contract, for a topology in PySpark tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from helpers.admin import samples
from helpers.runtimes import SECONDS, Running, Runtime, RuntimeContract, counted, typed
from pyspark.sql import SparkSession

from tuplewire.processes.worker_processes import WorkerProcesses
from tuplewire_topology import Topology
from tuplewire_topology.spark import SparkTopology, TopologyResult, submit_topology

pytestmark = pytest.mark.spark


class OnSpark(Running):
    """A topology in two PySpark tasks."""

    def __init__(self, running: SparkTopology, workers: WorkerProcesses) -> None:
        self.running = running
        self.workers = workers

    @property
    def result(self) -> TopologyResult:
        result: TopologyResult = self.running.result(SECONDS)
        return result

    def finish(self) -> list[tuple[int, int]]:
        return typed(self.result.frames["total"].collect())

    def counts(self, component: str) -> Counter[str]:
        return counted(self.result.executors, component)

    def metric(self, name: str) -> float:
        pages = [samples(each.metrics_url) for each in self.workers.endpoints]
        return sum(value for page in pages for each, value in page.items() if each.startswith(name))

    def stop(self) -> None:
        self.running.stop()
        self.running.result(SECONDS)


class Spark(Runtime):
    """Two PySpark tasks, each next to a worker."""

    again = True

    def __init__(self, spark: SparkSession, workers: WorkerProcesses) -> None:
        self.spark = spark
        self.workers = workers

    @contextmanager
    def run(self, topology: Topology, **conf: Any) -> Iterator[Running]:
        addresses = [each.unix_address for each in self.workers.endpoints]
        settings = {"topology.workers": 2, **conf}
        running = submit_topology(
            self.spark, topology, conf=settings, outputs=None, workers=addresses, name="t"
        )
        try:
            yield OnSpark(running, self.workers)
        finally:
            if not running.is_done:
                running.cancel()
                assert running.wait(SECONDS)


@pytest.fixture(scope="module")
def runtime(spark: SparkSession) -> Iterator[Runtime]:
    """Return Spark with two workers that all topologies here use, one after the other."""
    with WorkerProcesses(2, "tests", flags=["--drain-seconds=1", "--receive-queue-messages=64"]) as local:
        yield Spark(spark, local)


class TestSpark(RuntimeContract):
    """The contract, for Spark."""
