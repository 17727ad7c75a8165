"""Metrics that a topology registers, in one process and in several: at the workers of its tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from helpers import measured_words
from helpers.admin import samples
from helpers.alone import alone
from helpers.measured_words import check

from tuplewire_topology import BasicBolt, BasicOutputCollector, TopologyBuilder, TopologyContext, Tuple
from tuplewire_topology.clusters.capture import FeederSpout
from tuplewire_topology.clusters.cluster import DistributedCluster, LocalCluster
from tuplewire_topology.coordination.executor_reports import component_statuses

SECONDS = 120.0


def test_in_processes() -> None:
    """Each process's /metrics has the metrics of its own tasks, and the cluster's status has all."""
    conf: dict[str, Any] = {
        "topology.workers": 2,
        "topology.serialized.message.size.metrics": True,
        "topology.acker.executors": 0,
    }
    with DistributedCluster() as cluster:
        running = cluster.submit("words", conf, "helpers.measured_words:topology")
        running.wait(SECONDS)
        per_process = [samples(url) for url in running.metrics_urls]
        check({name: value for each in per_process for name, value in each.items()})
        mine = [{name for name in each if name.startswith("tuplewire_user_words")} for each in per_process]
        assert sorted(map(len, mine)) in ([0, 2], [1, 1])
        told = {(sample.task, sample.name) for each in running.status().executors for sample in each.metrics}
        assert told == {
            (1, "lines_left"),
            *((task, name) for task in (2, 3) for name in ("words", "letters")),
        }
        sent = [
            value
            for each in per_process
            for name, value in each.items()
            if name == 'tuplewire_serialized_bytes_total{component="measure",source="lines"}'
        ]
        assert sum(sent) > 0


def test_a_bound_of_series_holds() -> None:
    """A process exports at most the configured number of series, and reports the omitted metrics."""
    conf = {"topology.user.metrics.series": 2}
    with LocalCluster() as cluster:
        running = cluster.submit("words", conf, measured_words.topology())
        running.wait(SECONDS)
        executors = running.status().executors
        assert sum(len(each.metrics) for each in executors) <= 2
        assert sum(each.omitted for each in executors) >= 5


def test_a_status_reads_no_gauge() -> None:
    """The status that the worker's event loop builds calls no user code."""
    feeder = FeederSpout(["number"])
    builder = TopologyBuilder()
    builder.set_spout("s", feeder)
    builder.set_bolt("b", Gauged()).shuffle_grouping("s")
    topology = builder.create_topology()
    worker = alone(topology)
    worker.start()
    try:
        component_statuses(topology, worker.executors)
        assert Gauged.reads == 0
        assert [each.value for executor in worker.statistics() for each in executor.metrics] == [1]
    finally:
        worker.close()


class Gauged(BasicBolt):
    """Counts the reads of its gauge."""

    reads = 0

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext) -> None:  # noqa: ARG002
        context.register_gauge("reads", self.read)

    def read(self) -> float:
        """Return the number of reads."""
        type(self).reads += 1
        return type(self).reads

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:
        """Do nothing."""
