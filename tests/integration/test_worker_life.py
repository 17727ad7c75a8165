"""The life of a worker with executors, in Storm's order: what comes first, and what last."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tuplewire import TaskGroup
from tuplewire.topology import (
    BasicBolt,
    BasicOutputCollector,
    Spout,
    SpoutOutputCollector,
    Topology,
    TopologyBuilder,
    TopologyContext,
    Tuple,
)
from tuplewire.topology.link import Done, Failed, Receive
from tuplewire.topology.worker import ExecutorWorker
from tuplewire_service.messaging.factory import TRANSPORT_KEY, TransportFactory
from tuplewire_service.testing import eventually
from tuplewire_service.topology.context_link import ContextLink
from tuplewire_service.worker.assignment import AssignedWorker, Assignment

SECONDS = 30.0
COUNT = 300


class Notes:
    """What happened, in order; copies of spouts and bolts share it."""

    def __init__(self, file: Path) -> None:
        self.seen: list[str] = []
        self.file = file
        self.go = threading.Event()

    def __deepcopy__(self, memo: object) -> Notes:
        return self

    def __call__(self, what: str) -> None:
        if what not in self.seen:
            self.seen.append(what)

    def again(self, what: str) -> None:
        """Note something where it happened last."""
        if what in self.seen:
            self.seen.remove(what)
        self.seen.append(what)


class NotedLink(ContextLink):
    """A link that notes what it is asked for."""

    notes: Notes

    def refresh(self) -> None:
        self.notes("heartbeat" if self.notes.file.exists() else "no heartbeat")
        self.notes("connections")
        super().refresh()

    def open(self, tasks: Sequence[range], receive: Receive, failed: Failed) -> None:
        self.notes("receive")
        super().open(tasks, receive, failed)

    def send(self, groups: Sequence[TaskGroup]) -> None:
        self.notes.again("transfer")
        super().send(groups)

    def close(self, timeout: float) -> None:
        self.notes("connections close")
        super().close(timeout)


class Numbers(Spout):
    """Emits numbers for as long as it is asked."""

    outputs = ("number",)

    def __init__(self, notes: Notes) -> None:
        self.notes = notes
        self.number = 0

    def open(
        self, conf: Mapping[str, Any], context: TopologyContext, collector: SpoutOutputCollector
    ) -> None:
        super().open(conf, context, collector)
        self.notes("executors")

    def next_tuple(self) -> None:
        if self.number < COUNT:
            self.collector.emit([self.number])
            self.number += 1

    def deactivate(self) -> None:
        self.notes("spouts stop")

    def close(self) -> None:
        self.notes.again("executors end")


class Late(BasicBolt):
    """Works once it may, and emits what it gets."""

    outputs = ("number",)

    def __init__(self, notes: Notes) -> None:
        self.notes = notes

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext) -> None:  # noqa: ARG002
        self.notes("executors")

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:
        self.notes.go.wait(SECONDS)
        collector.emit(message.values)
        self.notes.again("last tuple executed")

    def cleanup(self) -> None:
        self.notes.again("executors end")


class End(BasicBolt):
    """Is elsewhere."""

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:
        """Do nothing."""


def topology_of(notes: Notes) -> Topology:
    """Return numbers (task 3) to "late" (task 2) to "end" (task 1)."""
    builder = TopologyBuilder()
    builder.set_spout("numbers", Numbers(notes))
    builder.set_bolt("late", Late(notes)).shuffle_grouping("numbers")
    builder.set_bolt("end", End()).shuffle_grouping("late")
    return builder.create_topology()


@pytest.mark.parametrize("transport", ["local", "grpc", "zmq"])
def test_a_workers_life(transport: str, tmp_path: Path) -> None:
    """It says that it lives, connects, opens, receives; it ends from the spouts to the connections.

    What is in its queues when it is told to end is executed, and what that emits arrives: Storm closes the
    connections first, and loses it.
    """
    notes = Notes(tmp_path / "heartbeat.json")
    topology = topology_of(notes)
    context = TransportFactory.make_context({TRANSPORT_KEY: transport})
    arrived: list[bytes] = []

    def receive(groups: Sequence[TaskGroup], done: Done) -> None:
        for group in groups:
            arrived.extend(group.payloads())
            done(group)

    there = ContextLink(context, "t")
    there.open([range(1, 2)], receive, lambda _: None)
    here = NotedLink(context, "t")
    here.notes = notes
    here.assign(
        Assignment(1, "t", (AssignedWorker("there", f"127.0.0.1:{there.port}", (1,)),)),
        topology.tasks_of("end"),
    )
    notes.seen.clear()
    worker = ExecutorWorker(topology, [2, 3], topology_id="t", link=here, state_file=notes.file)
    worker.start()
    assert notes.seen == ["heartbeat", "connections", "executors", "receive"]
    worker.activate()
    queue = worker.bolts[0].queue
    eventually(lambda: queue.statistics().arrived == COUNT, SECONDS, "all are in the queue or executed")
    assert arrived == []
    closing = threading.Thread(target=worker.close, args=(SECONDS,))
    closing.start()
    eventually(lambda: "spouts stop" in notes.seen, SECONDS)
    notes.go.set()
    closing.join(SECONDS)
    assert not closing.is_alive()
    assert notes.seen[4:] == [
        "spouts stop",
        "last tuple executed",
        "transfer",
        "executors end",
        "connections close",
    ]
    assert len(arrived) == COUNT
    there.close(SECONDS)
    context.term()
