"""A topology with a bolt that is too slow while a file exists: it then sleeps for each word."""

from __future__ import annotations

import time
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

FILE_KEY = "mine.slow"
"""The key of the file's path."""
_SECONDS = 0.005
"""The time per word while the file exists."""
_LINE_SECONDS = 0.005
"""The minimum time per line, which limits the load of the other components even on a busy machine."""


class Lines(Spout):
    """Emits lines without end."""

    outputs = ("line",)
    number = 0

    def next_tuple(self) -> None:
        """Emit a line."""
        time.sleep(_LINE_SECONDS)
        self.number += 1
        self.collector.emit([f"the line of number {self.number % 1000}"])


class Split(BasicBolt):
    """Splits lines."""

    outputs = ("word",)

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:
        """Emit a line's words."""
        for word in message[0].split():
            collector.emit([word])


class Count(BasicBolt):
    """Receives words, and sleeps while the file exists."""

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext) -> None:  # noqa: ARG002
        """Read the file's path."""
        self.file = Path(conf[FILE_KEY])

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:  # noqa: ARG002
        """Sleep if the file exists."""
        if self.file.exists():
            time.sleep(_SECONDS)


class Store(BasicBolt):
    """Ignores its input without delay."""

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:
        """Ignore a line."""


def topology() -> Topology:
    """Return the topology: lines are split and the words counted; lines are also stored."""
    builder = TopologyBuilder()
    builder.set_spout("lines", Lines())
    builder.set_bolt("split", Split(), 2).shuffle_grouping("lines")
    builder.set_bolt("store", Store()).shuffle_grouping("lines")
    builder.set_bolt("count", Count(), 2).fields_grouping("split", "word")
    return builder.create_topology()
