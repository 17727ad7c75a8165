"""Metrics of topologies: of users, of executors, and reports of a program to its local worker."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from helpers import measured_words
from helpers.admin import samples
from helpers.executors import Sink, alone, pipeline, waiting
from helpers.measured_words import check
from helpers.program_reports import component, counter, report
from helpers.prometheus import promtool_accepts
from helpers.words import LINES
from helpers.worker_process import Running, assignment_for
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import ResourceLimitError, StaleAssignmentError, WrongTopologyError, WrongWorkerError
from tuplewire_service.metrics.families import ProgramCollector
from tuplewire_service.testing import eventually
from tuplewire_topology import (
    BasicBolt,
    BasicOutputCollector,
    FailedError,
    Stream,
    Topology,
    TopologyBuilder,
    TopologyContext,
    Tuple,
)
from tuplewire_topology.clusters.capture import FeederSpout
from tuplewire_topology.clusters.cluster import LocalCluster
from tuplewire_topology.coordination import executor_reports
from tuplewire_topology.coordination.executor_reports import (
    ProgramReporter,
    component_statuses,
    metric_families,
)
from tuplewire_topology.running.executor_group import ExecutorGroup

SECONDS = 60.0
"""A worker accepts two reports per second."""
ORDERS = 'tuplewire_user_orders_total{component="bill",task="%d"}'


def told(worker: Running) -> dict[str, float]:
    """Return the program metrics in the worker's /metrics."""
    read = samples(str(worker.bound["metrics_url"]))
    return {name: value for name, value in read.items() if "_user_" in name or "omitted_metrics" in name}


@pytest.fixture
def control(worker: Running) -> Iterator[ControlClient]:
    """Return a control client of a worker with its first assignment."""
    with ControlClient(worker.address) as control:
        control.update_assignment(assignment_for(worker))
        yield control


def test_reports_are_in_metrics(worker: Running, control: ControlClient) -> None:
    """Reports replace each other and are not added up; a report for an outdated assignment is refused."""
    assert told(worker) == {}
    control.report_program(report(counter(1, 5)))
    control.report_program(report(counter(2, 7), program="q"))
    assert told(worker) == {ORDERS % 1: 5, ORDERS % 2: 7}
    with pytest.raises(ResourceLimitError, match="report once a second"):
        control.report_program(report(counter(1, 6)))
    control.update_assignment(assignment_for(worker, 2))
    with pytest.raises(StaleAssignmentError, match="for assignment 1, and the current one is 2"):
        control.report_program(report(counter(1, 6)))
    control.report_program(report(counter(1, 1), version=2))
    assert told(worker) == {ORDERS % 1: 1}


def test_reports_are_in_the_status(control: ControlClient) -> None:
    """A program's components are in the worker's status until the program reports its end."""
    control.report_program(report(component(1, 5)))
    assert list(control.status().components) == [component(1, 5)]
    control.report_program(report(component(1, 5), ended=True))
    assert not control.status().components


def test_refusals_are_named(control: ControlClient) -> None:
    """Reports for another worker or topology are refused with specific errors."""
    with pytest.raises(WrongWorkerError, match="the program expects 'b'"):
        control.report_program(report(expected_worker_id="b"))
    with pytest.raises(WrongTopologyError, match="the program belongs to 'other'"):
        control.report_program(report(topology="other"))


@pytest.fixture
def executors() -> ExecutorGroup:
    """Return the executors of a topology, not started yet."""
    return alone(measured_words.topology())


def reporter(address: str, executors: ExecutorGroup) -> ProgramReporter:
    """Return a reporter that sends the metrics of executors to a worker."""
    return ProgramReporter(
        ControlClient(address),
        lambda: report(*metric_families(executors.statistics(), executors.heartbeats.last)),
    )


@pytest.mark.usefixtures("control")
def test_executors_beside_a_worker(worker: Running, executors: ExecutorGroup) -> None:
    """Metrics of the executors' tasks are reported while they run, and their final values afterwards."""
    with reporter(worker.address, executors):
        executors.start()
        lines = 'tuplewire_user_lines_left{component="lines",task="1"}'
        eventually(lambda: lines in told(worker), SECONDS, "the first report")
        assert told(worker)[lines] == len(LINES)
        executors.set_active(active=True)
        eventually(lambda: told(worker)[lines] == 0, SECONDS, "all lines are emitted")
        executors.close(SECONDS)
    check(told(worker))


@pytest.mark.usefixtures("control")
def test_after_an_error_everything_is_taken_back(worker: Running, executors: ExecutorGroup) -> None:
    """After an error, all reported metrics are withdrawn, because a retry counts from the start."""

    def fail() -> None:
        with reporter(worker.address, executors):
            executors.start()
            eventually(lambda: told(worker), SECONDS, "the first report")
            executors.close(SECONDS)
            raise LookupError("a process has exited")

    with pytest.raises(LookupError):
        fail()
    assert told(worker) == {}


def test_nobody_listens(
    nobody: str, executors: ExecutorGroup, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failed reports are logged once a minute, and have no other effect."""

    def not_told() -> list[str]:
        return [line for line in caplog.messages if line.startswith("program.report_failed")]

    monkeypatch.setattr(executor_reports, "REPORT_INTERVAL_SECONDS", 0.05)
    executors.start()
    try:
        with caplog.at_level(logging.WARNING), reporter(nobody, executors):
            eventually(not_told, SECONDS, "the log says so")
    finally:
        executors.close(SECONDS)
    (line,) = not_told()
    assert line.startswith(f'program.report_failed failed=1 reason="{nobody}: no connection')


def test_a_bound_of_series_holds() -> None:
    """A process exports at most the configured number of series, and reports the omitted metrics."""
    conf = {"topology.user.metrics.series": 2}
    with LocalCluster() as cluster:
        running = cluster.submit("words", conf, measured_words.topology())
        running.wait(SECONDS)
        executors = running.status().executors
        assert sum(len(each.metrics) for each in executors) <= 2
        assert sum(each.omitted_count for each in executors) >= 5


def test_a_status_reads_no_gauge() -> None:
    """The status that the worker's event loop builds calls no user code."""
    topology = pipeline({"s": FeederSpout(["number"]), "b": Gauged()})
    worker = alone(topology)
    worker.start()
    try:
        component_statuses(topology, worker.executors)
        assert Gauged.reads == 0
        assert [each.value for executor in worker.statistics() for each in executor.metrics] == [1]
    finally:
        worker.close()


class Gauged(Sink):
    """Counts the reads of its gauge."""

    reads = 0

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext) -> None:  # noqa: ARG002
        context.register_gauge("reads", self.read)

    def read(self) -> float:
        type(self).reads += 1
        return type(self).reads


class Sort(BasicBolt):
    """Emits odd and even numbers on separate streams, and fails negative numbers."""

    outputs = (Stream("number", name="odd"), Stream("number", name="even"))

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:
        if message["number"] < 0:
            raise FailedError
        collector.emit([message["number"]], stream="odd" if message["number"] % 2 else "even")


def sorting(feeder: FeederSpout) -> Topology:
    """Return a topology: "sort" splits the numbers, both tasks of "all" get all, and "odd" the odd ones."""
    builder = TopologyBuilder()
    builder.set_spout("numbers", feeder)
    builder.set_bolt("sort", Sort(), 2).shuffle_grouping("numbers")
    builder.set_bolt("odd", Sink()).shuffle_grouping("sort", "odd")
    builder.set_bolt("all", Sink(), 2).all_grouping("sort", "odd").all_grouping("sort", "even")
    return builder.create_topology()


def scraped(registry: CollectorRegistry) -> dict[str, float]:
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
    read = scraped(sorted_numbers)
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
    read = scraped(sorted_numbers)
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
    read = scraped(sorted_numbers)
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
    promtool_accepts(generate_latest(sorted_numbers).decode())


def test_a_full_queue_is_seen() -> None:
    """The metrics of a slow bolt show a full queue and the waiting time of its tuples."""
    go = threading.Event()
    feeder = FeederSpout(["number"])
    registry = CollectorRegistry()
    with LocalCluster() as cluster:
        running = cluster.submit("t", {"topology.executor.receive.buffer.size": 4}, waiting(feeder, go))
        registry.register(ProgramCollector(running.metrics))
        for number in range(20):
            feeder.feed([number])
        eventually(lambda: scraped(registry)["receive_queue_fill_ratio b 1-1"] == 1, SECONDS)
        assert scraped(registry)["receive_queue_sojourn_seconds b 1-1"] > 0
        go.set()
        running.wait()
        assert scraped(registry)["receive_queue_fill_ratio b 1-1"] == 0
