"""User metrics of topologies, and metrics that a program reports to its local worker, in /metrics."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from helpers import eventually, measured_words
from helpers.admin import samples
from helpers.alone import alone
from helpers.measured_words import check
from helpers.program_reports import component, counter, report
from helpers.words import LINES
from helpers.worker_process import Running, assignment_for
from prometheus_client.parser import text_string_to_metric_families

from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import (
    ProtocolError,
    ResourceLimitError,
    StaleAssignmentError,
    WrongTopologyError,
    WrongWorkerError,
)
from tuplewire.wire import control_pb2
from tuplewire_topology import BasicBolt, BasicOutputCollector, TopologyBuilder, TopologyContext, Tuple
from tuplewire_topology.clusters.capture import FeederSpout
from tuplewire_topology.clusters.cluster import LocalCluster
from tuplewire_topology.coordination.executor_reports import (
    ProgramReporter,
    component_statuses,
    metric_families,
)
from tuplewire_topology.running.executor_worker import ExecutorWorker

SECONDS = 60.0
PERIOD = 0.6
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
    with pytest.raises(StaleAssignmentError, match="by assignment 1, and the current one is 2"):
        control.report_program(report(counter(1, 6)))
    control.report_program(report(counter(1, 1), version=2))
    assert told(worker) == {ORDERS % 1: 1}


def test_reports_are_in_the_status(control: ControlClient) -> None:
    """A program's components are in the worker's status until the program reports its end."""
    control.report_program(report(component(1, 5)))
    assert list(control.status().components) == [component(1, 5)]
    control.report_program(report(component(1, 5), ended=True))
    assert not control.status().components


def test_refusals_are_named(worker: Running, control: ControlClient) -> None:
    """Invalid reports are refused with specific errors, and the metrics page stays readable."""
    with pytest.raises(WrongWorkerError, match="the program means 'b'"):
        control.report_program(report(receiver_id="b"))
    with pytest.raises(WrongTopologyError, match="the program belongs to 'other'"):
        control.report_program(report(topology="other"))
    ours = counter(1, 1)
    ours.name = "tuplewire_ready"
    ours.kind = control_pb2.METRIC_KIND_GAUGE
    with pytest.raises(ProtocolError, match="the worker has a metric 'tuplewire_ready' of its own"):
        control.report_program(report(ours))
    control.report_program(report(counter(1, 1, component='a"\n\\b')))
    names = [family.name for family in text_string_to_metric_families(worker.get("/metrics")[1])]
    assert "tuplewire_user_orders" in names


@pytest.fixture
def executors() -> ExecutorWorker:
    """Return the executors of a topology, not started yet."""
    return alone(measured_words.topology())


def reporter(address: str, executors: ExecutorWorker, period: float = PERIOD) -> ProgramReporter:
    """Return a reporter that sends the metrics of executors to a worker."""
    return ProgramReporter(
        ControlClient(address),
        lambda: report(*metric_families(executors.statistics(), executors.heartbeats.last)),
        period,
    )


@pytest.mark.usefixtures("control")
def test_executors_beside_a_worker(worker: Running, executors: ExecutorWorker) -> None:
    """Metrics of the executors' tasks are reported while they run, and their final values afterwards."""
    with reporter(worker.address, executors):
        executors.start()
        lines = 'tuplewire_user_lines_left{component="lines",task="1"}'
        eventually(lambda: lines in told(worker), SECONDS, "the first report")
        assert told(worker)[lines] == len(LINES)
        executors.switch(active=True)
        eventually(lambda: told(worker)[lines] == 0, SECONDS, "all lines are emitted")
        executors.close(SECONDS)
    check(told(worker))


@pytest.mark.usefixtures("control")
def test_after_an_error_everything_is_taken_back(worker: Running, executors: ExecutorWorker) -> None:
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


def test_nobody_listens(nobody: str, executors: ExecutorWorker, caplog: pytest.LogCaptureFixture) -> None:
    """Failed reports are logged once a minute, and have no other effect."""

    def not_told() -> list[str]:
        return [line for line in caplog.messages if line.startswith("program.not")]

    executors.start()
    try:
        with caplog.at_level(logging.WARNING), reporter(nobody, executors, 0.05):
            eventually(not_told, SECONDS, "the log says so")
    finally:
        executors.close(SECONDS)
    (line,) = not_told()
    assert line.startswith(f'program.not_reported reports=1 reason="{nobody}: no connection')


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
