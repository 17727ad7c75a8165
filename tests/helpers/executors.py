"""Executors in this process, without other workers, and bolts that call a function or do nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tuplewire.values.group import TaskGroup
from tuplewire_topology import BasicBolt, BasicOutputCollector, Spout, Topology, TopologyBuilder, Tuple
from tuplewire_topology.acking.acker import LocalTracker
from tuplewire_topology.authoring.tuples import AddressedTuples
from tuplewire_topology.running.component_executors import BoltExecutor
from tuplewire_topology.running.executor_group import ExecutorGroup
from tuplewire_topology.running.link import Link, OnFailure, OnReceive

_POLL_SECONDS = 0.005


def wait_idle(worker: ExecutorGroup, timeout: float) -> bool:
    """Wait until no tuple is queued and no spout emits. Return False after the timeout; raise TaskError."""
    deadline, begins = time.monotonic() + timeout, True
    while not worker.report(new_epoch=begins).is_idle:
        worker.raise_if_failed()
        if time.monotonic() > deadline:
            return False
        begins = False
        time.sleep(_POLL_SECONDS)
    worker.raise_if_failed()
    return True


class NoLink(Link):
    """A link without a client, for executors that have all tasks of their topology."""

    def __init__(self) -> None:
        self.worker = None

    def subscribe(self, tasks: Sequence[range], receive: OnReceive, on_failure: OnFailure) -> None:
        """Receive nothing."""

    def unsubscribe(self, tasks: range) -> None:
        """Do nothing."""

    def send(self, groups: Sequence[TaskGroup]) -> None:
        """Fail: there is no other worker."""
        raise AssertionError(f"there are messages for task {groups[0].task}")

    @property
    def pending_messages(self) -> int:
        return 0

    def lost_messages(self) -> int:
        return 0

    def abort(self) -> None:
        """Do nothing."""

    def close(self, timeout: float) -> None:
        """Do nothing."""


def alone(topology: Topology, *, conf: Mapping[str, Any] | None = None, **settings: Any) -> ExecutorGroup:
    """Return the executors of all tasks of a topology, not started yet. The settings are ExecutorGroup's."""

    def tell(column: AddressedTuples) -> None:
        worker.transfer.enqueue(column)

    worker = ExecutorGroup(topology, conf=conf, link=NoLink(), acker=LocalTracker(tell), **settings)
    return worker


def bolts_of(worker: ExecutorGroup) -> list[BoltExecutor]:
    """Return the executors of bolts."""
    return [each for each in worker.executors if isinstance(each, BoltExecutor)]


class Sink(BasicBolt):
    """Accepts all tuples, and emits nothing."""

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:
        """Do nothing."""


class Do(BasicBolt):
    """Calls a function with each tuple, and emits its result unless that is None."""

    outputs = ("number",)

    def __init__(self, function: Callable[[Tuple], Any]) -> None:
        self.function = function

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:
        """Call the function."""
        result = self.function(message)
        if result is not None:
            collector.emit([result])


def pipeline(components: Mapping[str, Any], tasks: int = 1, executors: int = 0) -> Topology:
    """Return a spout and bolts; each bolt takes the tuples of the component before it.

    tasks: of each bolt. executors: of each bolt; 0 means one for each task.
    """
    builder = TopologyBuilder()
    (source, spout), *bolts = components.items()
    builder.set_spout(source, spout)
    for name, bolt in bolts:
        builder.set_bolt(name, bolt, executors or tasks).set_num_tasks(tasks).shuffle_grouping(source)
        source = name
    return builder.create_topology()


def waiting(spout: Spout, go: threading.Event) -> Topology:
    """Return a spout "s" of numbers and a bolt "b" that waits for the event."""
    return pipeline({"s": spout, "b": Do(lambda _: go.wait(60))})


@contextmanager
def running(
    topology: Topology, conf: Mapping[str, Any] | None = None, **more: Any
) -> Iterator[ExecutorGroup]:
    """Run a topology in this process; its executors must stop with the block."""
    before = threading.enumerate()
    worker = alone(topology, conf=conf, **more)
    try:
        worker.start()
        worker.set_active(active=True)
        yield worker
    finally:
        worker.close()
    left = (thread.name for thread in threading.enumerate() if thread not in before)
    assert not [name for name in left if name.startswith("executor ")]
