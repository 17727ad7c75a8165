"""A topology with a bolt that is too slow while a file is there: it then sleeps for each word."""

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
"""Names the file."""
_SECONDS = 0.005
"""What a word takes then."""
_LINE_SECONDS = 0.005
"""What a line takes at least: so few that nobody else has much to do, however busy the machine is."""


class Lines(Spout):
    """Emits lines without end."""

    outputs = ("line",)
    number = 0

    def next_tuple(self) -> None:
        """Emit one."""
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
    """Takes words, and its time."""

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext) -> None:  # noqa: ARG002
        """Find the file."""
        self.file = Path(conf[FILE_KEY])

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:  # noqa: ARG002
        """Sleep, perhaps."""
        if self.file.exists():
            time.sleep(_SECONDS)


class Store(BasicBolt):
    """Does nothing, quickly."""

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:
        """Drop a line."""


def topology() -> Topology:
    """Return it: lines are split, words are counted; and lines are stored."""
    builder = TopologyBuilder()
    builder.set_spout("lines", Lines())
    builder.set_bolt("split", Split(), 2).shuffle_grouping("lines")
    builder.set_bolt("store", Store()).shuffle_grouping("lines")
    builder.set_bolt("count", Count(), 2).fields_grouping("split", "word")
    return builder.create_topology()
