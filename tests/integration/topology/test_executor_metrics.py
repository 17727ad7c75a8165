"""Executor metrics: the Prometheus page, and the readiness probe of a stuck executor."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator

import pytest
from helpers.tools import require_tool
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tuplewire_service.metrics.families import ProgramCollector
from tuplewire_service.testing import eventually
from tuplewire_topology import (
    BasicBolt,
    BasicOutputCollector,
    FailedError,
    Stream,
    Topology,
    TopologyBuilder,
    Tuple,
)
from tuplewire_topology.clusters.capture import FeederSpout
from tuplewire_topology.clusters.cluster import LocalCluster

SECONDS = 30.0


class Sort(BasicBolt):
    """Emits odd and even numbers on separate streams, and fails negative numbers."""

    outputs = (Stream("number", name="odd"), Stream("number", name="even"))

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:
        if message["number"] < 0:
            raise FailedError
        collector.emit([message["number"]], stream="odd" if message["number"] % 2 else "even")


class End(BasicBolt):
    """Ignores its input."""

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:
        """Do nothing."""


def sorting(feeder: FeederSpout) -> Topology:
    """Return a topology: "sort" splits the numbers, both tasks of "all" get all, and "odd" the odd ones."""
    builder = TopologyBuilder()
    builder.set_spout("numbers", feeder)
    builder.set_bolt("sort", Sort(), 2).shuffle_grouping("numbers")
    builder.set_bolt("odd", End()).shuffle_grouping("sort", "odd")
    builder.set_bolt("all", End(), 2).all_grouping("sort", "odd").all_grouping("sort", "even")
    return builder.create_topology()


def samples(registry: CollectorRegistry) -> dict[str, float]:
    """Return the scraped samples, by name and label values."""
    return {
        f"{sample.name.removeprefix('tuplewire_')} {' '.join(sample.labels.values())}": sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }


@pytest.fixture(scope="module")
def sorted_numbers() -> Iterator[CollectorRegistry]:
    """Run ten numbers, three of them negative, through two workers, and return their metrics."""
    feeder = FeederSpout(["number"])
    registry = CollectorRegistry()
    with LocalCluster() as cluster:
        running = cluster.submit("t", {"topology.workers": 2}, sorting(feeder))
        for number in range(6, -4, -1):
            feeder.feed([number], message_id=number)
        running.wait()
        registry.register(ProgramCollector(running.metrics))
        yield registry


def test_counts_by_stream(sorted_numbers: CollectorRegistry) -> None:
    """Emitted, transferred, executed, acked and failed tuples are counted by component and stream."""
    read = samples(sorted_numbers)
    counts = {name: value for name, value in read.items() if "_tuples_total " in name and "queue" not in name}
    assert counts == {
        "emitted_tuples_total numbers default": 10,
        "emitted_tuples_total sort even": 4,
        "emitted_tuples_total sort odd": 3,
        "transferred_tuples_total numbers default": 10,
        "transferred_tuples_total sort even": 8,
        "transferred_tuples_total sort odd": 9,
        "executed_tuples_total all sort even": 8,
        "executed_tuples_total all sort odd": 6,
        "executed_tuples_total odd sort odd": 3,
        "executed_tuples_total sort numbers default": 10,
        "acked_tuples_total all sort even": 8,
        "acked_tuples_total all sort odd": 6,
        "acked_tuples_total numbers numbers default": 7,
        "acked_tuples_total odd sort odd": 3,
        "acked_tuples_total sort numbers default": 7,
        "failed_tuples_total numbers numbers default": 3,
        "failed_tuples_total sort numbers default": 3,
    }


def test_latencies(sorted_numbers: CollectorRegistry) -> None:
    """Latencies have sums and counts: execute for every tuple, complete for processed tuples only."""
    read = samples(sorted_numbers)
    assert read["execute_latency_seconds_count sort"] == 10
    assert read["complete_latency_seconds_count numbers"] == 7
    assert 1 <= read["process_latency_seconds_count sort"] <= 7
    for name in ("execute_latency", "process_latency"):
        assert 0 < read[f"{name}_seconds_sum sort"] < SECONDS
    assert read["complete_latency_seconds_sum numbers"] >= read["execute_latency_seconds_sum odd"]
    assert "execute_latency_seconds_count numbers" not in read
    assert read["sending_seconds_total numbers"] > 0


def test_queues(sorted_numbers: CollectorRegistry) -> None:
    """Every executor's receive queue has the metrics that Storm has."""
    read = samples(sorted_numbers)
    arrived = sum(
        value for name, value in read.items() if name.startswith("receive_queue_arrived_tuples_total sort")
    )
    assert arrived == 10
    assert read["receive_queue_tuples odd 4-4"] == 0
    assert read["receive_queue_capacity_tuples odd 4-4"] == 32_768
    for name in ("fill_ratio", "overflow_tuples", "arrivals_per_second", "sojourn_seconds"):
        assert f"receive_queue_{name} odd 4-4" in read
    assert read["spout_pending_tuples numbers"] == 0


def test_promtool_finds_nothing(sorted_numbers: CollectorRegistry) -> None:
    """Prometheus's promtool accepts the names, types and help texts."""
    promtool = require_tool("promtool", "Debian's package prometheus")
    run = subprocess.run(
        [promtool, "check", "metrics"],
        input=generate_latest(sorted_numbers),
        capture_output=True,
        check=False,
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, b"", b"")


def waiting(feeder: FeederSpout, go: threading.Event) -> Topology:
    """Return a spout "s" and a bolt "b" that waits for the event."""

    class Wait(BasicBolt):
        def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:  # noqa: ARG002
            go.wait(SECONDS)

    builder = TopologyBuilder()
    builder.set_spout("s", feeder)
    builder.set_bolt("b", Wait()).shuffle_grouping("s")
    return builder.create_topology()


def test_a_full_queue_is_seen() -> None:
    """The metrics of a slow bolt show a full queue and the waiting time of its tuples."""
    go = threading.Event()
    feeder = FeederSpout(["number"])
    registry = CollectorRegistry()
    with LocalCluster() as cluster:
        conf = {"topology.executor.receive.buffer.size": 4}
        running = cluster.submit("t", conf, waiting(feeder, go))
        registry.register(ProgramCollector(running.metrics))
        for number in range(20):
            feeder.feed([number])
        eventually(lambda: samples(registry)["receive_queue_fill_ratio b 1-1"] == 1, SECONDS)
        assert samples(registry)["receive_queue_sojourn_seconds b 1-1"] > 0
        go.set()
        running.wait()
        assert samples(registry)["receive_queue_fill_ratio b 1-1"] == 0
