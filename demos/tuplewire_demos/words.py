"""Word count, Storm's classic example, as a topology for any cluster.

lines -> shuffle -> split -> fields grouping on word -> count; lines that are not text -> skipped

Used by run_wordcount.py. Its tasks own their state. Not thread-safe. Design: docs/design/topologies.md.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tuplewire.settings.config import KIB
from tuplewire_demos.input import SHOWN_CHARACTERS
from tuplewire_topology import (
    BasicBolt,
    BasicOutputCollector,
    Spout,
    SpoutOutputCollector,
    Stream,
    Topology,
    TopologyBuilder,
    TopologyContext,
    Tuple,
)

COUNTS = "count"
"""The component that emits the result: words with their counts. The last count of a word is final."""
SKIPPED = "skipped"
"""The component that emits skipped lines: the offset in the file (bytes), the reason, and the line."""

MAX_LINE_BYTES = 256 * KIB
"""Longer lines are sent in pieces, because the size of a message is limited."""

_SKIPPED_STREAM = Stream("offset", "problem", "text", name="skipped")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_TICK_SECONDS = 3600


def wordcount_topology(
    path: Path, *, n_spouts: int = 1, n_splitters: int = 2, n_counters: int = 2
) -> Topology:
    """Return the topology that counts the words of a UTF-8 text file, which every process must reach.

    Each spout reads a part of the file. Lines that are not UTF-8 are skipped and reported. White space
    separates words, as in str.split(). Counts are emitted on ticks, including the last tick at the end.
    """
    builder = TopologyBuilder()
    builder.set_spout("lines", Lines(str(path.absolute())), n_spouts)
    builder.set_bolt("split", Split(), n_splitters).shuffle_grouping("lines")
    count = builder.set_bolt(COUNTS, Count(), n_counters).fields_grouping("split", "word")
    count.add_configuration("topology.tick.tuple.freq.secs", _TICK_SECONDS)
    builder.set_bolt(SKIPPED, Skipped()).global_grouping("lines", _SKIPPED_STREAM.name)
    return builder.create_topology()


class Lines(Spout):
    """Emits the lines of its part of a file, and repeats failed lines."""

    outputs = (Stream("line"), _SKIPPED_STREAM)

    def __init__(self, path: str) -> None:
        self.path = path

    def open(
        self, conf: Mapping[str, Any], context: TopologyContext, collector: SpoutOutputCollector
    ) -> None:
        """Go to the first line that starts in this task's part. The part includes all of its last line."""
        super().open(conf, context, collector)
        self.file = Path(self.path).open("rb")  # noqa: SIM115 - until close()
        size = os.fstat(self.file.fileno()).st_size
        count = len(context.component_tasks)
        begin, self.end = (size * index // count for index in (context.task_index, context.task_index + 1))
        if begin:
            self.file.seek(begin - 1)  # to skip the last line of the previous part
            self.file.readline()
        self.offset = self.file.tell()
        self.on_the_way: dict[int, str] = {}
        self.again: list[int] = []
        self.emitted = 0

    def next_tuple(self) -> None:
        """Emit a failed line again, or else the next line."""
        if self.again:
            number = self.again.pop()
            self.collector.emit([self.on_the_way[number]], message_id=number)
            return
        offset, raw = self.offset, self.file.readline()
        self.offset = offset + len(raw) if raw else self.end
        for line in lines_of(raw, offset):
            try:
                text = line.decode()
            except UnicodeDecodeError:
                shown = line.decode("utf-8", "backslashreplace")[:SHOWN_CHARACTERS]
                self.collector.emit([offset, "is not UTF-8", shown], stream=_SKIPPED_STREAM.name)
                continue
            for piece in [text] if len(line) <= MAX_LINE_BYTES else pieces_of(text):
                self.emitted += 1
                self.on_the_way[self.emitted] = piece
                self.collector.emit([piece], message_id=self.emitted)

    @property
    def exhausted(self) -> bool:
        """True if all lines have been emitted, and no failed line waits for its repetition."""
        return self.offset >= self.end and not self.again

    def ack(self, message_id: Any) -> None:
        """Forget a processed line."""
        del self.on_the_way[message_id]

    def fail(self, message_id: Any) -> None:
        """Schedule the repetition of a failed line."""
        self.again.append(message_id)

    def close(self) -> None:
        """Close the file."""
        self.file.close()


class Split(BasicBolt):
    """Emits the words of a line."""

    outputs = ("word",)

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:
        """Emit each word."""
        for word in message["line"].split():
            collector.emit([word])


class Count(BasicBolt):
    """Counts words, and emits changed counts on a tick."""

    outputs = ("word", "count")

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext) -> None:  # noqa: ARG002 - as declared
        """Start without counts."""
        self.counts: Counter[str] = Counter()
        self.changed: set[str] = set()

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:
        """Count a word, or emit the changed counts on a tick."""
        if message.is_tick:
            for word in self.changed:
                collector.emit([word, self.counts[word]])
            self.changed.clear()
        else:
            word = message["word"]
            self.counts[word] += 1
            self.changed.add(word)


class Skipped(BasicBolt):
    """Forwards skipped lines, so that one task has all of them."""

    outputs = ("offset", "problem", "text")

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:
        """Emit the values unchanged."""
        collector.emit(message.values)


def lines_of(raw: bytes, offset: int) -> list[bytes]:
    """Split the bytes up to a line feed into lines: a carriage return also ends a line."""
    if offset == 0:
        raw = raw.removeprefix(_BYTE_ORDER_MARK)
    return raw.splitlines()


def pieces_of(line: str) -> Iterator[str]:
    """Split a line at white space into pieces of at most MAX_LINE_BYTES; a longer word is one piece."""
    piece: list[str] = []
    size = 0
    for word in line.split():
        length = len(word.encode()) + 1
        if piece and size + length > MAX_LINE_BYTES:
            yield " ".join(piece)
            piece, size = [], 0
        piece.append(word)
        size += length
    if piece:
        yield " ".join(piece)
