"""Topologies that other processes import: one counts the words of some lines, and emits counts on ticks.

Some words cause faults: one raises an error, one fails its line, one has a count that cannot be serialized,
and one blocks until a file exists. While another file exists, the bolt of slow_topology() is too slow: it
sleeps for each word. The other one writes numbers to files, and loses none: its spout has a memory.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from helpers.executors import pipeline
from tuplewire_topology import (
    BasicBolt,
    BasicOutputCollector,
    FailedError,
    Spout,
    SpoutOutputCollector,
    Topology,
    TopologyBuilder,
    TopologyContext,
    Tuple,
)
from tuplewire_topology.clusters.capture import FixedTupleSpout

LINES = ["to be or not to be", "that is the question", "whether tis nobler in the mind to suffer"] * 300
EXPECTED = Counter(word for line in LINES for word in line.split())
POISON = "poison"
FAILED = "failed"
STRANGE = "strange"
SLOW = "slow"
STOP = "stop"
DONE = "done"
SLOW_FILE = "mine.slow"
"""The key of the path of the file that makes a bolt slow."""
_WORD_SECONDS = 0.005
"""The time per word while the file exists."""
_LINE_SECONDS = 0.005
"""The minimum time per line, which limits the load of the other components even on a busy machine."""


class Lines(FixedTupleSpout):
    """Emits its lines, and failed lines again."""

    outputs = ("line",)

    def __init__(self, lines: list[str]) -> None:
        super().__init__([[line] for line in lines])


class Split(BasicBolt):
    """Emits words. One word raises an error, one fails its line, and one waits for a file."""

    outputs = ("word",)

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext) -> None:  # noqa: ARG002
        self.gate = conf.get("mine.gate")

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:
        for word in message["line"].split():
            if word == POISON:
                raise ValueError("an unbearable word")
            if word == FAILED:
                raise FailedError
            while word == SLOW and self.gate and not Path(self.gate).exists():
                time.sleep(0.01)
            collector.emit([word])


class Count(BasicBolt):
    """Counts words, and emits every count on a tick."""

    outputs = ("word", "count", "process")

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext) -> None:  # noqa: ARG002
        self.counts: Counter[str] = Counter()

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:
        if message.is_tick:
            for word, count in self.counts.items():
                collector.emit([word, count, object() if word == STRANGE else os.getpid()])
        else:
            self.counts[message["word"]] += 1


def topology_of(lines: list[str] | Spout, tick_seconds: int = 3600) -> Topology:
    """Return the topology: count has the tasks 1 and 2, lines 3, split 4 and 5."""
    builder = TopologyBuilder()
    builder.set_spout("lines", Lines(lines) if isinstance(lines, list) else lines)
    builder.set_bolt("split", Split(), 2).shuffle_grouping("lines")
    count = builder.set_bolt("count", Count(), 2).fields_grouping("split", "word")
    count.add_configuration("topology.tick.tuple.freq.secs", tick_seconds)
    return builder.create_topology()


def topology() -> Topology:
    """Return the topology with LINES, for programs that refer to it by name."""
    return topology_of(LINES)


class EndlessLines(Spout):
    """Emits lines without end."""

    outputs = ("line",)
    number = 0

    def next_tuple(self) -> None:
        time.sleep(_LINE_SECONDS)
        self.number += 1
        self.collector.emit([f"the line of number {self.number % 1000}"])


class Store(BasicBolt):
    """Ignores its input. While the file exists, it sleeps for each tuple if `may_be_slow` is set."""

    def __init__(self, *, may_be_slow: bool = False) -> None:
        self.may_be_slow = may_be_slow

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext) -> None:  # noqa: ARG002
        self.file = Path(conf[SLOW_FILE]) if self.may_be_slow else None

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:  # noqa: ARG002
        if self.file is not None and self.file.exists():
            time.sleep(_WORD_SECONDS)


def slow_conf(file: Path) -> dict[str, Any]:
    """Return settings for slow_topology() in two processes, with queues that a slow bolt soon fills."""
    return {
        SLOW_FILE: str(file),
        "topology.workers": 2,
        "topology.acker.executors": 0,
        "topology.executor.receive.buffer.size": 64,
        "tuplewire.worker.receive_queue_messages": 64,
    }


def slow_topology() -> Topology:
    """Return an endless count of words; only the bolt "count" is slow while the file exists."""
    builder = TopologyBuilder()
    builder.set_spout("lines", EndlessLines())
    builder.set_bolt("split", Split(), 2).shuffle_grouping("lines")
    builder.set_bolt("store", Store()).shuffle_grouping("lines")
    builder.set_bolt("count", Store(may_be_slow=True), 2).fields_grouping("split", "word")
    return builder.create_topology()


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


def numbers_topology() -> Topology:
    """Return a spout, and three tasks of a bolt, which lose no tuple unless their workers do."""
    return pipeline({"numbers": Numbers(), "write": WriteDown()}, tasks=3)
