"""Metrics that a program reports to the worker beside it: in that worker's /metrics."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from helpers import eventually, measured_words
from helpers.admin import samples
from helpers.measured_words import check
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
from tuplewire.spark.topology.metrics_reporter import MetricsReporter
from tuplewire.topology.running.executor_worker import ExecutorWorker
from tuplewire.wire import control_pb2

SECONDS = 60.0
PERIOD = 0.6
"""A worker takes two reports a second."""
ORDERS = 'tuplewire_user_orders_total{component="bill",task="%d"}'


def report(task: int, value: float, version: int = 1, **more: str) -> control_pb2.ReportMetricsRequest:
    """Return a report of one counter."""
    metric = control_pb2.RegisteredMetric(
        component="bill", task=task, name="orders", kind=control_pb2.METRIC_KIND_COUNTER, value=value
    )
    said: dict[str, Any] = {"topology": "default", "receiver_id": "a", "reporter": f"p{task}", **more}
    return control_pb2.ReportMetricsRequest(metrics=[metric], assignment_version=version, **said)


def told(worker: Running) -> dict[str, float]:
    """Return what the worker tells of others' metrics."""
    read = samples(str(worker.bound["metrics_url"]))
    return {name: value for name, value in read.items() if "_user_" in name or "left_out_metrics" in name}


@pytest.fixture
def control(worker: Running) -> Iterator[ControlClient]:
    """Return a client of a worker that has its first assignment."""
    with ControlClient(worker.address) as control:
        control.update_assignment(assignment_for(worker))
        yield control


def test_reports_are_in_metrics(worker: Running, control: ControlClient) -> None:
    """They are replaced, not added up; an assignment that is not in force says nothing."""
    assert told(worker) == {}
    control.report_metrics(report(1, 5))
    control.report_metrics(report(2, 7))
    assert told(worker) == {ORDERS % 1: 5, ORDERS % 2: 7}
    with pytest.raises(ResourceLimitError, match="report every few seconds"):
        control.report_metrics(report(1, 6))
    control.update_assignment(assignment_for(worker, 2))
    with pytest.raises(StaleAssignmentError, match="by assignment 1, and 2 is in force"):
        control.report_metrics(report(1, 6))
    control.report_metrics(report(1, 1, version=2))
    assert told(worker) == {ORDERS % 1: 1}


def test_refusals_are_named(worker: Running, control: ControlClient) -> None:
    """Another worker's, another topology's, and what is no metric; the page can be read after it."""
    with pytest.raises(WrongWorkerError, match="the program means 'b'"):
        control.report_metrics(report(1, 1, receiver_id="b"))
    with pytest.raises(WrongTopologyError, match="the program belongs to 'other'"):
        control.report_metrics(report(1, 1, topology="other"))
    broken = report(1, 1)
    broken.metrics[0].name = "n\nx 1"
    with pytest.raises(ProtocolError, match="a metric's name has 1 to 100 letters"):
        control.report_metrics(broken)
    odd = report(1, 1, reporter="odd")
    odd.metrics[0].component = 'a"\n\\b'
    control.report_metrics(odd)
    names = [family.name for family in text_string_to_metric_families(worker.get("/metrics")[1])]
    assert "tuplewire_user_orders" in names


def program(version: int = 1) -> control_pb2.ReportMetricsRequest:
    """Return who reports."""
    return control_pb2.ReportMetricsRequest(
        topology="default", receiver_id="a", reporter="run-0", assignment_version=version
    )


@pytest.mark.usefixtures("control")
def test_executors_beside_a_worker(worker: Running) -> None:
    """What their tasks register is told while they run, and how far they came after it."""
    executors = ExecutorWorker(measured_words.topology())
    with MetricsReporter(ControlClient(worker.address), program(), executors.statistics, PERIOD):
        executors.start(SECONDS)
        lines = 'tuplewire_user_lines_left{component="lines",task="1"}'
        eventually(lambda: lines in told(worker), SECONDS, "the first report")
        assert told(worker)[lines] == len(LINES)
        executors.activate()
        eventually(lambda: told(worker)[lines] == 0, SECONDS, "all lines are emitted")
        executors.close(SECONDS)
    check(told(worker))


@pytest.mark.usefixtures("control")
def test_after_an_error_everything_is_taken_back(worker: Running) -> None:
    """Whatever failed may run again, and count anew."""

    def fail() -> None:
        executors = ExecutorWorker(measured_words.topology())
        with MetricsReporter(ControlClient(worker.address), program(), executors.statistics, PERIOD):
            executors.start(SECONDS)
            eventually(lambda: told(worker), SECONDS, "the first report")
            executors.close(SECONDS)
            raise LookupError("a process is gone")

    with pytest.raises(LookupError):
        fail()
    assert told(worker) == {}


def test_nobody_listens(nobody: str, caplog: pytest.LogCaptureFixture) -> None:
    """What cannot be told is in the log, once a minute, and nothing else comes of it."""
    executors = ExecutorWorker(measured_words.topology())

    def not_told() -> list[str]:
        return [line for line in caplog.messages if line.startswith("metrics.")]

    executors.start(SECONDS)
    try:
        with (
            caplog.at_level(logging.WARNING),
            MetricsReporter(ControlClient(nobody), program(), executors.statistics, 0.05),
        ):
            eventually(not_told, SECONDS, "the log says so")
    finally:
        executors.close(SECONDS)
    (line,) = not_told()
    assert line.startswith(f'metrics.not_told reports=1 reason="{nobody}: no connection')
