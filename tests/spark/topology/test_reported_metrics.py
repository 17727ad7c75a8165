"""Metrics of spouts and bolts in PySpark tasks appear at the workers next to these tasks."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from helpers import eventually, measured_words, words
from helpers.admin import samples
from helpers.measured_words import added_up, check
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from tuplewire.processes.worker_processes import WorkerProcesses
from tuplewire_topology import (
    BasicBolt,
    BasicOutputCollector,
    Spout,
    SpoutOutputCollector,
    Topology,
    TopologyBuilder,
    TopologyContext,
    Tuple,
)
from tuplewire_topology.spark import TopologyProgress, run_topology, submit_topology

pytestmark = pytest.mark.spark
# Spark's Python workers do not find these modules.
for module in (sys.modules[__name__], measured_words, words):
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]

SECONDS = 180.0
TWO = {"topology.workers": 2, "topology.acker.executors": 0}
COUNT = 1000
SEEN = "tuplewire_user_seen_total"


def quiet(_: TopologyProgress) -> None:
    """Ignore progress."""


@pytest.fixture(scope="module")
def workers(spark: SparkSession) -> Iterator[WorkerProcesses]:  # noqa: ARG001 - Spark forks: start it first
    """Return two workers that all topologies here use, one after the other."""
    with WorkerProcesses(2, "tests", flags=["--drain-seconds=1"]) as local:
        yield local


def told(workers: WorkerProcesses) -> list[dict[str, float]]:
    """Return the registered metrics of each worker."""
    return [{name: value for name, value in read.items() if "_user_" in name} for read in scraped(workers)]


def scraped(workers: WorkerProcesses) -> list[dict[str, float]]:
    """Return all metrics of each worker."""
    return [samples(each.metrics_url) for each in workers.endpoints]


@pytest.mark.slow
def test_each_run_is_told_by_itself(spark: SparkSession, workers: WorkerProcesses, tmp_path: Path) -> None:
    """Both workers export the metrics of their local tasks; the next run replaces them."""
    addresses = [each.unix_address for each in workers.endpoints]
    result = run_topology(
        spark, measured_words.topology(), conf=TWO, workers=addresses, progress=quiet, name="words"
    )
    one, other = told(workers)
    assert one
    assert other
    assert one.keys().isdisjoint(other.keys())
    check(one | other)
    for name in ('emitted_tuples_total{component="lines"', 'executed_tuples_total{component="measure"'):
        assert sum(added_up(read, f"tuplewire_{name}") for read in scraped(workers)) == len(words.LINES)
    assert {sample.task for each in result.executors for sample in each.metrics} == {1, 2, 3}
    for name in ("go", "died"):
        (tmp_path / name).touch()
    run_topology(spark, counting(tmp_path), conf=TWO, workers=addresses, progress=quiet, name="numbers")
    one, other = told(workers)
    assert {name.partition("{")[0] for name in one | other} == {SEEN, "tuplewire_user_next"}
    assert added_up(one, SEEN) + added_up(other, SEEN) == COUNT


class Held(Spout):
    """Emits half of its numbers, and the rest once a file exists."""

    outputs = ("number",)

    def __init__(self, go: Path) -> None:
        self.go = go
        self.next = 0

    def open(
        self, conf: Mapping[str, Any], context: TopologyContext, collector: SpoutOutputCollector
    ) -> None:
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


def counting(folder: Path) -> Topology:
    """Return a topology of numbers and two tasks of a bolt that counts them."""
    builder = TopologyBuilder()
    builder.set_spout("numbers", Held(folder / "go"))
    builder.set_bolt("count", DieOnce(folder / "died"), 2).shuffle_grouping("numbers")
    return builder.create_topology()


@pytest.mark.slow
def test_a_stage_that_runs_again_counts_anew(
    spark: SparkSession, workers: WorkerProcesses, tmp_path: Path
) -> None:
    """Metrics are exported while a stage runs; numbers counted before a process died are not added again."""
    addresses = [each.unix_address for each in workers.endpoints]
    running = submit_topology(spark, counting(tmp_path), conf=TWO, workers=addresses, name="numbers")

    def seen() -> float:
        return sum(added_up(each, SEEN) for each in told(workers))

    eventually(lambda: seen() == COUNT // 2, SECONDS, "the first half is told while it runs")
    (tmp_path / "go").touch()
    running.result(SECONDS)
    assert (tmp_path / "died").exists()
    assert seen() == COUNT
    (name,) = (name for each in told(workers) for name in each if "_user_next" in name)
    assert name.startswith('tuplewire_user_next{component="numbers"')
