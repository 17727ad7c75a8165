"""The words of `words`, with metrics of their own: imported by other processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from helpers.words import LINES, Lines
from tuplewire.topology import (
    BasicBolt,
    BasicOutputCollector,
    SpoutOutputCollector,
    Topology,
    TopologyBuilder,
    TopologyContext,
    Tuple,
)


class MeasuredLines(Lines):
    """Tells how many lines are left."""

    def open(
        self, conf: Mapping[str, Any], context: TopologyContext, collector: SpoutOutputCollector
    ) -> None:
        super().open(conf, context, collector)
        context.register_gauge("lines.left", lambda: len(self.left))


class Measure(BasicBolt):
    """Counts words, and how long they are; one gauge of it cannot be read."""

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext) -> None:  # noqa: ARG002
        self.words = context.register_counter("words")
        self.letters = context.register_histogram("letters", buckets=(2, 5))
        context.register_gauge("broken", lambda: 1 / 0)

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:  # noqa: ARG002
        for word in message["line"].split():
            self.words.inc()
            self.letters.update(len(word))


def topology() -> Topology:
    """Return it: lines is task 1, measure has 2 and 3."""
    builder = TopologyBuilder()
    builder.set_spout("lines", MeasuredLines(LINES))
    builder.set_bolt("measure", Measure(), 2).shuffle_grouping("lines")
    return builder.create_topology()
