"""The words of `words`, with user metrics. Other processes import this module."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from helpers.executors import pipeline
from helpers.words import EXPECTED, LINES, Lines
from tuplewire_topology import (
    BasicBolt,
    BasicOutputCollector,
    SpoutOutputCollector,
    Topology,
    TopologyContext,
    Tuple,
)

WORDS = sum(EXPECTED.values())
LETTERS = Counter(len(word) for line in LINES for word in line.split())
SHORT, LONG = (sum(count for size, count in LETTERS.items() if size <= bound) for bound in (2, 5))


class MeasuredLines(Lines):
    """Exports the number of remaining lines as a gauge."""

    def open(self, conf: Any, context: TopologyContext, collector: SpoutOutputCollector) -> None:
        super().open(conf, context, collector)
        context.register_gauge("lines.left", lambda: len(self._remaining))


class Measure(BasicBolt):
    """Counts words and their lengths. One of its gauges cannot be read."""

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext) -> None:  # noqa: ARG002
        self.words = context.register_counter("words")
        self.letters = context.register_histogram("letters", buckets=(2, 5))
        context.register_gauge("broken", lambda: 1 / 0)

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:  # noqa: ARG002
        for word in message["line"].split():
            self.words.inc()
            self.letters.update(len(word))


def topology() -> Topology:
    """Return the topology: lines is task 1, measure has tasks 2 and 3."""
    return pipeline({"lines": MeasuredLines(LINES), "measure": Measure()}, tasks=2)


def added_up(read: dict[str, float], start: str) -> float:
    """Add up the series with this prefix."""
    return sum(value for name, value in read.items() if name.startswith(start))


def check(read: dict[str, float]) -> None:
    """Check that the series of all processes add up to the expected counts."""
    user = "tuplewire_user_"
    assert added_up(read, user + 'words_total{component="measure"') == WORDS
    assert {name for name in read if name.startswith(user + "words_total")} == {
        f'{user}words_total{{component="measure",task="{task}"}}' for task in (2, 3)
    }
    assert added_up(read, user + "letters_count") == WORDS
    assert added_up(read, user + "letters_sum") == sum(size * count for size, count in LETTERS.items())
    buckets = Counter[str]()
    for name, value in read.items():
        if name.startswith(user + "letters_bucket"):
            buckets[name.partition('le="')[2].partition('"')[0]] += int(value)
    assert buckets == {"2.0": SHORT, "5.0": LONG, "+Inf": WORDS}
    assert read[user + 'lines_left{component="lines",task="1"}'] == 0
    assert not any("broken" in name for name in read)
    assert added_up(read, 'tuplewire_omitted_metrics{component="measure"}') == 0
