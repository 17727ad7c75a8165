"""Word count, Storm's classic, as a topology: for any cluster that runs topologies.

lines -> shuffle -> split -> fields grouping on word -> count; lines that are no text -> skipped
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
"""The component whose tuples are the result: each word with its count, the last one of a word counts."""
SKIPPED = "skipped"
"""The component whose tuples are what was left out: where in the file (bytes), why, and the line."""

MAX_LINE_BYTES = 256 * KIB
"""Longer lines travel in pieces: a message has a largest size."""

_SKIPPED_STREAM = Stream("offset", "problem", "text", name="skipped")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_TICK_SECONDS = 3600


def wordcount_topology(
    path: Path, *, n_spouts: int = 1, n_splitters: int = 2, n_counters: int = 2
) -> Topology:
    """Return the topology that counts the words of a UTF-8 text file, which every process must reach.

    Each spout reads a part of the file. A line that is not UTF-8 is left out, and told. Words stand between
    white space, as in str.split(). The counts are emitted on ticks, and with the last one.
    """
    builder = TopologyBuilder()
    builder.set_spout("lines", Lines(str(path.absolute())), n_spouts)
    builder.set_bolt("split", Split(), n_splitters).shuffle_grouping("lines")
    count = builder.set_bolt(COUNTS, Count(), n_counters).fields_grouping("split", "word")
    count.add_configuration("topology.tick.tuple.freq.secs", _TICK_SECONDS)
    builder.set_bolt(SKIPPED, Skipped()).global_grouping("lines", _SKIPPED_STREAM.name)
    return builder.create_topology()


class Lines(Spout):
    """Emits the lines of its part of a file, and those again that fail."""

    outputs = (Stream("line"), _SKIPPED_STREAM)

    def __init__(self, path: str) -> None:
        self.path = path

    def open(
        self, conf: Mapping[str, Any], context: TopologyContext, collector: SpoutOutputCollector
    ) -> None:
        """Go to the first line that begins in this task's part; a part ends with the line it ends in."""
        super().open(conf, context, collector)
        self.file = Path(self.path).open("rb")  # noqa: SIM115 - until close()
        size = os.fstat(self.file.fileno()).st_size
        count = len(context.component_tasks)
        begin, self.end = (size * index // count for index in (context.task_index, context.task_index + 1))
        if begin:
            self.file.seek(begin - 1)
            self.file.readline()
        self.offset = self.file.tell()
        self.on_the_way: dict[int, str] = {}
        self.again: list[int] = []
        self.emitted = 0

    def next_tuple(self) -> None:
        """Emit a line that has failed, or the next one."""
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
        """Whether all lines have been emitted, and none has failed since."""
        return self.offset >= self.end and not self.again

    def ack(self, message_id: Any) -> None:
        """Forget a line that is processed."""
        del self.on_the_way[message_id]

    def fail(self, message_id: Any) -> None:
        """Emit a line again that has failed."""
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
    """Counts words, and emits on a tick the counts that have changed since the last."""

    outputs = ("word", "count")

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext) -> None:  # noqa: ARG002 - as declared
        """Begin with nothing."""
        self.counts: Counter[str] = Counter()
        self.changed: set[str] = set()

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:
        """Count a word, or emit what has changed."""
        if message.is_tick:
            for word in self.changed:
                collector.emit([word, self.counts[word]])
            self.changed.clear()
        else:
            word = message["word"]
            self.counts[word] += 1
            self.changed.add(word)


class Skipped(BasicBolt):
    """Hands on what was left out, so that all of it is in one place."""

    outputs = ("offset", "problem", "text")

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:
        """Emit it as it is."""
        collector.emit(message.values)


def lines_of(raw: bytes, offset: int) -> list[bytes]:
    """Return the lines in what stands between two line feeds: a carriage return ends one as well."""
    if offset == 0:
        raw = raw.removeprefix(_BYTE_ORDER_MARK)
    return raw.splitlines()


def pieces_of(line: str) -> Iterator[str]:
    """Cut a line at white space into pieces of at most MAX_LINE_BYTES; a longer word is one."""
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
