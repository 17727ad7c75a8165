"""Executors in this process, and bolts that call a function or do nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from helpers.alone import alone
from tuplewire_topology import BasicBolt, BasicOutputCollector, Spout, Topology, TopologyBuilder, Tuple
from tuplewire_topology.running.executor_worker import ExecutorWorker


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


def waiting(spout: Spout, go: threading.Event) -> Topology:
    """Return a spout "s" of numbers and a bolt "b" that waits for the event."""
    builder = TopologyBuilder()
    builder.set_spout("s", spout)
    builder.set_bolt("b", Do(lambda _: go.wait(60))).shuffle_grouping("s")
    return builder.create_topology()


@contextmanager
def running(
    topology: Topology, conf: Mapping[str, Any] | None = None, **more: Any
) -> Iterator[ExecutorWorker]:
    """Run a topology in this process; its executors must stop with the block."""
    before = threading.enumerate()
    worker = alone(topology, conf=conf, **more)
    try:
        worker.start()
        worker.switch(active=True)
        yield worker
    finally:
        worker.close()
    left = (thread.name for thread in threading.enumerate() if thread not in before)
    assert not [name for name in left if name.startswith("executor ")]
