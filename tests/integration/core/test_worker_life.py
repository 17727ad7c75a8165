"""The life of a worker with executors, in Storm's order of start and shutdown."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from helpers.alone import bolts_of
from helpers.hosted import hosted

from tuplewire import TaskGroup
from tuplewire_service.testing import eventually
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
from tuplewire_topology.running.executor_worker import ExecutorWorker
from tuplewire_topology.running.link import Failed, Link, Receive

SECONDS = 30.0
COUNT = 300


class Notes:
    """The events in order; shared by copies of spouts and bolts."""

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
        """Record an event at the position of its latest occurrence."""
        if what in self.seen:
            self.seen.remove(what)
        self.seen.append(what)


class NotedLink(Link):
    """A link that records the calls to another link."""

    def __init__(self, link: Link, notes: Notes) -> None:
        self.worker = link.worker
        self.link = link
        self.notes = notes

    def open(self, tasks: Sequence[range], receive: Receive, failed: Failed) -> None:
        self.notes("receive")
        self.link.open(tasks, receive, failed)

    def send(self, groups: Sequence[TaskGroup]) -> None:
        self.notes.again("transfer")
        self.link.send(groups)

    def lost(self) -> int:
        return self.link.lost()

    def close(self, timeout: float) -> None:
        self.notes("link closes")
        self.link.close(timeout)


class Numbers(Spout):
    """Emits numbers up to COUNT."""

    outputs = ("number",)

    def __init__(self, notes: Notes) -> None:
        self.notes = notes
        self.number = 0

    def open(
        self, conf: Mapping[str, Any], context: TopologyContext, collector: SpoutOutputCollector
    ) -> None:
        super().open(conf, context, collector)
        self.notes("heartbeat" if self.notes.file.exists() else "no heartbeat")
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
    """Waits until the test lets it continue, and emits its input."""

    outputs = ("number",)

    def __init__(self, notes: Notes) -> None:
        self.notes = notes

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext) -> None:  # noqa: ARG002
        self.notes("heartbeat" if self.notes.file.exists() else "no heartbeat")
        self.notes("executors")

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:
        self.notes.go.wait(SECONDS)
        collector.emit(message.values)
        self.notes.again("last tuple executed")

    def cleanup(self) -> None:
        self.notes.again("executors end")


class End(BasicBolt):
    """Runs at the other worker."""

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:
        """Do nothing."""


def topology_of(notes: Notes) -> Topology:
    """Return the topology: numbers (task 3) to "late" (task 2) to "end" (task 1)."""
    builder = TopologyBuilder()
    builder.set_spout("numbers", Numbers(notes))
    builder.set_bolt("late", Late(notes)).shuffle_grouping("numbers")
    builder.set_bolt("end", End()).shuffle_grouping("late")
    return builder.create_topology()


def arrivals(link: Link) -> list[bytes]:
    """Open the link of "end", and return the list to which it adds the payloads that arrive."""
    arrived: list[bytes] = []

    def receive(group: TaskGroup, done: Callable[[], None]) -> None:
        arrived.extend(group.payloads())
        done()

    link.open([range(1, 2)], receive, lambda _: None)
    return arrived


def test_a_workers_life(tmp_path: Path) -> None:
    """A worker writes its heartbeat, opens executors and receives; it stops from the spouts to the link.

    Tuples queued at the shutdown are executed, and the tuples that they emit arrive. Storm closes the
    connections first and loses them.
    """
    notes = Notes(tmp_path / "heartbeat.json")
    topology = topology_of(notes)
    with hosted(topology, [2, 3], [1], transport="grpc") as (here, there):
        arrived = arrivals(there.link)
        link = NotedLink(here.link, notes)
        worker = ExecutorWorker(topology, [2, 3], topology_id="t", link=link, state_file=notes.file)
        worker.start()
        assert notes.seen == ["heartbeat", "executors", "receive"]
        worker.switch(active=True)
        queue = bolts_of(worker)[0].queue
        eventually(lambda: queue.statistics().arrived == COUNT, SECONDS, "all are in the queue or executed")
        assert arrived == []
        closing = threading.Thread(target=worker.close, args=(SECONDS,))
        closing.start()
        eventually(lambda: "spouts stop" in notes.seen, SECONDS)
        notes.go.set()
        closing.join(SECONDS)
        assert not closing.is_alive()
        assert notes.seen[3:] == [
            "spouts stop",
            "last tuple executed",
            "transfer",
            "executors end",
            "link closes",
        ]
        eventually(lambda: len(arrived) == COUNT, SECONDS)
        assert not notes.file.exists(), "a worker that has ended well leaves no state file"
