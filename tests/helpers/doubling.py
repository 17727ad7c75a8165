"""A topology for Spark that doubles numbers, and bolts that fail."""

from __future__ import annotations

from pathlib import Path

from tuplewire_topology import BasicBolt, BasicOutputCollector, Spout, Topology, TopologyBuilder, Tuple


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


def doubling(spout: Spout, bolt: BasicBolt, n_spouts: int = 1) -> Topology:
    """Return a topology of a spout of numbers, and a bolt of two tasks with a shuffle grouping."""
    builder = TopologyBuilder()
    builder.set_spout("numbers", spout, n_spouts)
    builder.set_bolt("double", bolt, 2).shuffle_grouping("numbers")
    return builder.create_topology()
