"""Word count, Storm's classic example, as a topology for any cluster.

lines -> shuffle -> split -> fields grouping on word -> count; lines that are not UTF-8 -> skipped

Used by run_wordcount.py. Owns the state of its tasks. Not thread-safe. Design: docs/design/topologies.md.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tuplewire.settings.config import KIB
from tuplewire_demos.file_spout import LINES, SKIPPED, SKIPPED_STREAM, FileSpout, SkippedLines
from tuplewire_topology import (
    BasicBolt,
    BasicOutputCollector,
    Stream,
    Topology,
    TopologyBuilder,
    TopologyContext,
    Tuple,
)

COUNTS = "count"
"""The component that emits the result: words with their counts. The last count of a word is final."""

MAX_PIECE_CHARACTERS = 64 * KIB
"""Longer lines are split at white space into pieces of at most this size: messages have a limit."""

_TICK_SECONDS = 3600


def wordcount_topology(
    path: Path, *, n_spouts: int = 1, n_splitters: int = 2, n_counters: int = 2
) -> Topology:
    """Return the topology that counts the words of a UTF-8 text file, which every process must find.

    Each spout reads a part of the file. Lines that are not UTF-8 are skipped and reported. White space
    separates words, as in str.split(). Counts are emitted on ticks, including the last tick at the end.
    """
    builder = TopologyBuilder()
    builder.set_spout(LINES, Lines(path), n_spouts)
    builder.set_bolt("split", LineSplitter(), n_splitters).shuffle_grouping(LINES)
    count = builder.set_bolt(COUNTS, WordCounter(), n_counters).fields_grouping("split", "word")
    count.add_configuration("topology.tick.tuple.freq.secs", _TICK_SECONDS)
    builder.set_bolt(SKIPPED, SkippedLines()).global_grouping(LINES, SKIPPED_STREAM.name)
    return builder.create_topology()


class Lines(FileSpout):
    """Emits the lines of its part of a file."""

    outputs = (Stream("line"), SKIPPED_STREAM)

    def parse_lines(self, lines: Iterable[tuple[int, bytes]]) -> Iterator[Sequence[Any]]:
        for offset, line in lines:
            try:
                text = line.decode()
            except UnicodeDecodeError:
                self.report_skipped(offset, "is not UTF-8", line)
                continue
            for piece in [text] if len(text) <= MAX_PIECE_CHARACTERS else split_long_line(text):
                yield [piece]


class LineSplitter(BasicBolt):
    """Emits the words of a line."""

    outputs = ("word",)

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:
        for word in message["line"].split():
            collector.emit([word])


class WordCounter(BasicBolt):
    """Counts words, and emits changed counts on a tick."""

    outputs = ("word", "count")

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext) -> None:  # noqa: ARG002 - as declared
        self.counts: Counter[str] = Counter()
        self.unreported: set[str] = set()

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:
        if message.is_tick:
            for word in self.unreported:
                collector.emit([word, self.counts[word]])
            self.unreported.clear()
        else:
            word = message["word"]
            self.counts[word] += 1
            self.unreported.add(word)


def split_long_line(line: str) -> list[str]:
    """Split a line at white space into pieces of at most MAX_PIECE_CHARACTERS; a longer word is one piece."""
    return re.findall(rf"\S.{{0,{MAX_PIECE_CHARACTERS - 1}}}(?!\S)|\S+", line, re.DOTALL)
