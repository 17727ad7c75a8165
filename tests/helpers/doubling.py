"""A topology for Spark that doubles numbers, and bolts that fail."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuplewire_topology import (
    BasicBolt,
    BasicOutputCollector,
    Spout,
    Topology,
    TopologyBuilder,
    TopologyContext,
    Tuple,
)


class Numbers(Spout):
    """Emits each number below a bound, or all numbers. On close, writes the number of emitted tuples."""

    outputs = ("number",)

    def __init__(self, count: int | None, notes: Path | None = None) -> None:
        self.count = count
        self.notes = notes
        self.next = 0

    def next_tuple(self) -> None:
        self.collector.emit([self.next], message_id=self.next)
        self.next += 1

    @property
    def exhausted(self) -> bool:
        return self.next == self.count

    def close(self) -> None:
        if self.notes is not None:
            (self.notes / "emitted").write_text(str(self.next))


class Double(BasicBolt):
    """Emits twice the number."""

    outputs = ("number", "doubled")

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit([message["number"], 2 * message["number"]])


class DoubleAndFail(Double):
    """Raises an error at one number."""

    def __init__(self, at: int) -> None:
        self.at = at

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:
        if message["number"] == self.at:
            raise LookupError("no such number")
        super().execute(message, collector)


class CountedDouble(Double):
    """Counts the numbers."""

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext) -> None:  # noqa: ARG002
        self.doubled = context.register_counter("doubled")

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:
        self.doubled.inc()
        super().execute(message, collector)


class DoubleAndDie(CountedDouble):
    """Also kills its process at one number, in each of the first `deaths` generations."""

    def __init__(self, at: int, notes: Path, deaths: int = 1) -> None:
        self.at = at
        self.notes = notes
        self.deaths = deaths

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:
        if message["number"] == self.at and len(list(self.notes.glob("died-*"))) < self.deaths:
            (self.notes / f"died-{os.getpid()}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        super().execute(message, collector)


def doubling(spout: Spout, bolt: BasicBolt, n_spouts: int = 1) -> Topology:
    """Return a topology of a spout of numbers, and a bolt of two tasks with a shuffle grouping."""
    builder = TopologyBuilder()
    builder.set_spout("numbers", spout, n_spouts)
    builder.set_bolt("double", bolt, 2).shuffle_grouping("numbers")
    return builder.create_topology()
