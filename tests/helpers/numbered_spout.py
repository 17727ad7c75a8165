"""A topology that loses no tuple unless its workers do: a spout with memory, and bolts that write files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from helpers.executors import pipeline
from tuplewire_topology import (
    BasicBolt,
    BasicOutputCollector,
    Spout,
    SpoutOutputCollector,
    Topology,
    TopologyContext,
    Tuple,
)

STOP = "stop"
DONE = "done"


class Numbers(Spout):
    """Emits numbers until the file `stop` exists, after a restart lost ones first; a file has all acks."""

    outputs = ("number",)

    def open(self, conf: Any, context: TopologyContext, collector: SpoutOutputCollector) -> None:
        super().open(conf, context, collector)
        self.folder = Path(conf["mine.folder"])
        known = self.folder / "acked"
        self.acked = set(map(int, known.read_text().split())) if known.exists() else set()
        self.file = known.open("a", buffering=1)
        self.next = max(self.acked, default=-1) + 1
        self.again = sorted(set(range(self.next)) - self.acked)

    def next_tuple(self) -> None:
        if self.again:
            number = self.again.pop()
        elif (self.folder / STOP).exists():
            if len(self.acked) == self.next:
                (self.folder / DONE).write_text(str(self.next))
            return
        else:
            number, self.next = self.next, self.next + 1
        self.collector.emit([number], message_id=number)

    def ack(self, message_id: Any) -> None:
        self.acked.add(message_id)
        self.file.write(f"{message_id}\n")

    def fail(self, message_id: Any) -> None:
        (self.folder / f"failed-{message_id}").touch()
        self.again.append(message_id)


class WriteDown(BasicBolt):
    """Writes each number to a file of its task."""

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext) -> None:
        self.file = (Path(conf["mine.folder"]) / f"seen-{context.task}").open("a", buffering=1)

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:  # noqa: ARG002
        self.file.write(f"{message['number']}\n")


def topology() -> Topology:
    """Return the topology: an acker, a spout, and three tasks of the bolt."""
    return pipeline({"numbers": Numbers(), "write": WriteDown()}, tasks=3)
