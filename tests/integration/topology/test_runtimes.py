"""The runtime contract for local clusters and processes; tests/spark has the tests for Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from helpers.admin import samples
from helpers.runtimes import (
    SECONDS,
    KeepsLetters,
    MovesTasks,
    Notes,
    Running,
    Runtime,
    RuntimeContract,
    counted,
    typed,
)
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tuplewire_service.metrics.families import ProgramCollector
from tuplewire_topology import Topology
from tuplewire_topology.clusters.cluster import DistributedCluster, LocalCluster
from tuplewire_topology.clusters.distributed_topology import DistributedTopology
from tuplewire_topology.clusters.local_topology import LocalTopology
from tuplewire_topology.coordination import coordinator

TWO = {"topology.workers": 2, "tuplewire.worker.receive_queue_messages": 64}


class InCluster(Running):
    """The common part of local clusters and processes."""

    def __init__(self, running: LocalTopology | DistributedTopology) -> None:
        self.running = running

    def finish(self) -> list[tuple[int, int]]:
        return typed(self.running.finish(SECONDS).tuples("total"))

    def counts(self, component: str) -> Counter[str]:
        return counted(self.running.status().executors, component)

    def stop(self) -> None:
        self.running.close(SECONDS)

    def rest(self) -> None:
        self.finish()

    def move(self, task: int) -> None:
        self.running.move_task(task, 1 - self.running.worker_index(task), SECONDS)


class InThisProcess(InCluster):
    """A topology in a local cluster."""

    running: LocalTopology

    def metric(self, name: str) -> float:
        registry = CollectorRegistry()
        registry.register(ProgramCollector(self.running.metrics))
        name, _, label = name.partition("{")
        return sum(
            sample.value
            for family in text_string_to_metric_families(generate_latest(registry).decode())
            for sample in family.samples
            if sample.name == name and (not label or f'component="{sample.labels["component"]}"' == label)
        )

    def dead_letters(self) -> list[tuple[int, int, str]]:
        return [(each.tuple["number"], each.tries, each.reason) for each in self.running.dead_letters]

    def kill(self, task: int, notes: Notes) -> None:
        del notes
        self.running.kill_worker(self.running.worker_index(task), SECONDS)


class InProcesses(InCluster):
    """A topology in a cluster of processes."""

    running: DistributedTopology

    def metric(self, name: str) -> float:
        pages = map(samples, self.running.metrics_urls)
        return sum(value for page in pages for each, value in page.items() if each.startswith(name))


class Local(Runtime):
    """Two workers in this process."""

    @contextmanager
    def run(self, topology: Topology, **conf: Any) -> Iterator[Running]:
        with LocalCluster() as cluster:
            yield InThisProcess(cluster.submit("t", {**TWO, **conf}, topology))


class Processes(Runtime):
    """Two worker processes."""

    @contextmanager
    def run(self, topology: Topology, **conf: Any) -> Iterator[Running]:
        soon = {"supervisor.worker.restarts": 1, "supervisor.worker.shutdown.sleep.secs": 2}
        settings = {**TWO, **soon, **conf}
        with DistributedCluster() as cluster:
            yield InProcesses(cluster.submit("t", settings, topology, collect=list(topology.components)))


class TestLocal(RuntimeContract, KeepsLetters, MovesTasks):
    """The contract for local clusters."""

    @pytest.fixture
    def runtime(self) -> Runtime:
        return Local()


class TestProcesses(RuntimeContract, MovesTasks):
    """The contract for processes; test_program_worker.py tests the dead letters of a worker's program."""

    @pytest.fixture
    def runtime(self, monkeypatch: pytest.MonkeyPatch) -> Runtime:
        # After a restart, the end is detected without counts; spouts wait for the acks of all their tuples.
        monkeypatch.setattr(coordinator, "_MIN_RESTARTED_WAVE_SECONDS", 0.2)
        return Processes()
