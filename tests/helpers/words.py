"""A topology that other processes import: it counts the words of some lines, and emits counts on ticks.

Some words cause faults: one raises an error, one kills its process, one has a count that cannot be
serialized, and one blocks until a file exists.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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

LINES = ["to be or not to be", "that is the question", "whether tis nobler in the mind to suffer"] * 300
EXPECTED = Counter(word for line in LINES for word in line.split())
POISON = "poison"
DEADLY = "deadly"
STRANGE = "strange"
SLOW = "slow"


class Lines(Spout):
    """Emits its lines, and failed lines once more."""

    outputs = ("line",)

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines

    def open(
        self, conf: Mapping[str, Any], context: TopologyContext, collector: SpoutOutputCollector
    ) -> None:
        super().open(conf, context, collector)
        self.left = list(range(len(self.lines)))

    def next_tuple(self) -> None:
        number = self.left.pop()
        self.collector.emit([self.lines[number]], message_id=number)

    @property
    def exhausted(self) -> bool:
        return not self.left

    def fail(self, message_id: Any) -> None:
        self.left.append(message_id)


class Split(BasicBolt):
    """Emits words. One word raises an error; another word kills the process, once."""

    outputs = ("word",)

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext) -> None:  # noqa: ARG002
        self.once = conf.get("mine.once")
        self.gate = conf.get("mine.gate")

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:
        for word in message["line"].split():
            if word == POISON:
                raise ValueError("an unbearable word")
            if word == DEADLY and self.once and not Path(self.once).exists():
                Path(self.once).touch()
                os.kill(os.getpid(), signal.SIGKILL)
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


def topology_of(lines: list[str]) -> Topology:
    """Return the topology: count has the tasks 1 and 2, lines 3, split 4 and 5."""
    builder = TopologyBuilder()
    builder.set_spout("lines", Lines(lines))
    builder.set_bolt("split", Split(), 2).shuffle_grouping("lines")
    count = builder.set_bolt("count", Count(), 2).fields_grouping("split", "word")
    count.add_configuration("topology.tick.tuple.freq.secs", 3600)
    return builder.create_topology()


def topology() -> Topology:
    """Return the topology with LINES, for programs that refer to it by name."""
    return topology_of(LINES)
