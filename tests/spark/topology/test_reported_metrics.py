"""Metrics of spouts and bolts in PySpark tasks appear at the workers next to these tasks."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from helpers import eventually
from helpers.admin import samples
from helpers.executors import pipeline
from helpers.measured_words import added_up
from pyspark.sql import SparkSession

from tuplewire.processes.worker_processes import WorkerProcesses
from tuplewire_topology import (
    BasicBolt,
    BasicOutputCollector,
    Spout,
    SpoutOutputCollector,
    TopologyContext,
    Tuple,
)
from tuplewire_topology.spark import submit_topology

pytestmark = pytest.mark.spark

SECONDS = 180.0
TWO = {"topology.workers": 2, "topology.acker.executors": 0}
COUNT = 1000
SEEN = "tuplewire_user_seen_total"


class Held(Spout):
    """Emits half of its numbers, and the rest once a file exists."""

    outputs = ("number",)

    def __init__(self, go: Path) -> None:
        self.go = go
        self.next = 0

    def open(self, conf: Any, context: TopologyContext, collector: SpoutOutputCollector) -> None:
        super().open(conf, context, collector)
        context.register_gauge("next", lambda: self.next)

    def next_tuple(self) -> None:
        if self.next < COUNT // 2 or self.go.exists():
            self.collector.emit([self.next])
            self.next += 1

    @property
    def exhausted(self) -> bool:
        return self.next == COUNT


class DieOnce(BasicBolt):
    """Counts its numbers; kills its process once, at the first number of the second half."""

    def __init__(self, died: Path) -> None:
        self.died = died

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext) -> None:  # noqa: ARG002
        self.seen = context.register_counter("seen")

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:  # noqa: ARG002
        if message["number"] == COUNT // 2 and not self.died.exists():
            self.died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        self.seen.inc()


@pytest.mark.slow
def test_a_stage_that_runs_again_counts_anew(spark: SparkSession, tmp_path: Path) -> None:
    """Metrics are exported while a stage runs; numbers counted before a process died are not added again."""
    with WorkerProcesses(2, "tests", flags=["--drain-seconds=1"]) as local:
        addresses = [each.unix_address for each in local.endpoints]

        def told() -> list[dict[str, float]]:
            return [samples(each.metrics_url) for each in local.endpoints]

        def seen() -> float:
            return sum(added_up(each, SEEN) for each in told())

        components = {"numbers": Held(tmp_path / "go"), "count": DieOnce(tmp_path / "died")}
        counting = pipeline(components, tasks=2)
        running = submit_topology(spark, counting, conf=TWO, workers=addresses, name="numbers")
        eventually(lambda: seen() == COUNT // 2, SECONDS, "the first half is told while it runs")
        (tmp_path / "go").touch()
        running.result(SECONDS)
        assert (tmp_path / "died").exists()
        assert seen() == COUNT
        (name,) = (name for each in told() for name in each if "_user_next" in name)
    assert name.startswith('tuplewire_user_next{component="numbers"')
