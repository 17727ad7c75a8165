"""Load-aware shuffle in a running topology: a slow task on any worker gets few tuples."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from tuplewire_service.testing import eventually
from tuplewire_topology import (
    BasicBolt,
    BasicOutputCollector,
    Spout,
    SpoutOutputCollector,
    TopologyBuilder,
    TopologyContext,
    Tuple,
)
from tuplewire_topology.clusters.cluster import LocalCluster

SECONDS = 60.0
PER_SECOND = 1500
LATEST = 500
MOST = 12_000


class Steady(Spout):
    """Emits a constant number of tuples per second, indefinitely."""

    outputs = ("number",)

    def open(
        self, conf: Mapping[str, Any], context: TopologyContext, collector: SpoutOutputCollector
    ) -> None:
        super().open(conf, context, collector)
        self.began = time.monotonic()
        self.next = 0

    def next_tuple(self) -> None:
        due = (time.monotonic() - self.began) * PER_SECOND
        while self.next < due:
            self.collector.emit([self.next])
            self.next += 1


class Work(BasicBolt):
    """Takes 0.5 ms for a tuple, but 6 ms in one of its tasks."""

    def __init__(self, slow: int) -> None:
        self.slow = slow

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext) -> None:  # noqa: ARG002
        self.seconds = 0.006 if context.task_index == self.slow else 0.0005

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:  # noqa: ARG002
        time.sleep(self.seconds)


@pytest.mark.parametrize(("workers", "slow"), [(1, 0), (2, 0)], ids=["alone", "far"])
def test_a_slow_task_gets_little(workers: int, slow: int) -> None:
    """Senders learn that tuples wait longer at the slow task, although no queue is full."""
    builder = TopologyBuilder()
    builder.set_spout("numbers", Steady())
    builder.set_bolt("work", Work(slow), 4).load_aware_shuffle_grouping("numbers")
    conf = {"topology.workers": workers, "storm.messaging.transport": "grpc"}
    with LocalCluster() as cluster:
        running = cluster.submit("t", conf, builder.create_topology(), collect=[])
        tasks = running.topology.tasks_of("work")
        assert len({running.worker_of(task) for task in tasks}) == workers
        before: Counter[int] = Counter()

        def share() -> float | None:
            """Return the slow task's share of the tuples since the last call, or None if they are few."""
            executors = [each for each in running.status().executors if each.component == "work"]
            arrived = Counter({each.tasks[0]: each.queue.arrived for each in executors})
            latest = arrived - before
            if latest.total() < LATEST:
                return None
            before.update(latest)
            return latest[tasks[slow]] / latest.total()

        eventually(lambda: share() is not None, SECONDS, "the first tuples arrive")
        eventually(lambda: (now := share()) is not None and now < 0.1, SECONDS, "the slow task gets little")
        assert before.total() < MOST, "by how full its queue is, that takes longer"
