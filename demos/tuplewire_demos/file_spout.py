"""Spouts that read a text file in parts, and the lines that they skip.

Used by flight_topology.py and word_topology.py. Owns a spout's open file, and its tuples that are not
processed yet. Not thread-safe. Design: docs/design/topologies.md.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from tuplewire_demos.input import MAX_SHOWN_CHARACTERS, MAX_SHOWN_ROWS, SkippedRow, SkippedRows
from tuplewire_topology import (
    BasicBolt,
    BasicOutputCollector,
    Spout,
    SpoutOutputCollector,
    Stream,
    TopologyContext,
    Tuple,
)

LINES = "lines"
"""The component that reads the file."""
SKIPPED = "skipped"
"""The component that emits skipped lines: the offset in the file (bytes), the reason, and the line."""
SKIPPED_STREAM = Stream("offset", "problem", "text", name="skipped")

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class FileSpout(Spout):
    """Emits the lines of its part of a file, and repeats failed tuples. Each task reads a part.

    chunk_bytes: the size of the lines that one call of next_tuple() reads; at least one line.
    """

    chunk_bytes = 1

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    def open(
        self, conf: Mapping[str, Any], context: TopologyContext, collector: SpoutOutputCollector
    ) -> None:
        """Go to the first line that starts in this task's part. The part includes all of its last line."""
        super().open(conf, context, collector)
        self.file = self.path.open("rb")
        size = os.fstat(self.file.fileno()).st_size
        count = len(context.component_tasks)
        begin, self.end = (size * index // count for index in (context.task_index, context.task_index + 1))
        if begin:
            self.file.seek(begin - 1)  # to skip the last line of the previous part
            self.file.readline()
        self.offset = self.file.tell()
        self.in_flight: dict[int, Sequence[Any]] = {}
        self.to_retry: list[int] = []
        self.last_message_id = 0

    @abstractmethod
    def parse_lines(self, lines: Iterable[tuple[int, bytes]]) -> Iterator[Sequence[Any]]:
        """Yield the values of a tuple for each line, given with its offset. Call skip() for a bad line."""

    def report_skipped(self, offset: int, problem: str, line: bytes) -> None:
        """Report a line that cannot be used."""
        text = line.decode("utf-8", "backslashreplace")[:MAX_SHOWN_CHARACTERS]
        self.collector.emit([offset, problem, text], stream=SKIPPED_STREAM.name)

    def next_tuple(self) -> None:
        if self.to_retry:
            message_id = self.to_retry.pop()
            self.collector.emit(self.in_flight[message_id], message_id=message_id)
            return
        offset, size = self.offset, min(self.chunk_bytes, self.end - self.offset)
        raw = self.file.read(size - 1) + self.file.readline()  # only lines that start in this chunk
        self.offset = offset + len(raw) if raw else self.end
        for values in self.parse_lines(split_lines(raw, offset)):
            self.last_message_id += 1
            self.in_flight[self.last_message_id] = values
            self.collector.emit(values, message_id=self.last_message_id)

    @property
    def exhausted(self) -> bool:
        return self.offset >= self.end and not self.to_retry

    def ack(self, message_id: Any) -> None:
        del self.in_flight[message_id]

    def fail(self, message_id: Any) -> None:
        self.to_retry.append(message_id)

    def close(self) -> None:
        self.file.close()


class SkippedLines(BasicBolt):
    """Forwards skipped lines, so that one task has all of them."""

    outputs = SKIPPED_STREAM.fields

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit(message.values)


def split_lines(raw: bytes, offset: int) -> Iterator[tuple[int, bytes]]:
    """Yield each line in `raw`, with its offset in the file. A carriage return also ends a line."""
    if not offset and raw.startswith(_BYTE_ORDER_MARK):
        offset = len(_BYTE_ORDER_MARK)
        raw = raw[offset:]
    for line in raw.splitlines(keepends=True):
        yield offset, line.rstrip(b"\r\n")
        offset += len(line)


def lines_with_offsets(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield every line of a file with its offset."""
    offset = 0
    with path.open("rb") as file:
        for raw in file:
            yield from split_lines(raw, offset)
            offset += len(raw)


def locate_skipped(path: Path, rows: Sequence[Sequence[Any]]) -> SkippedRows:
    """Return skipped lines (offset, problem, text) with their numbers. If there are any, reads the file."""
    first = sorted(rows, key=itemgetter(0))[:MAX_SHOWN_ROWS]
    wanted = {offset for offset, _, _ in first}
    lines = enumerate(lines_with_offsets(path) if first else (), 1)
    numbers = {offset: number for number, (offset, _) in lines if offset in wanted}
    return SkippedRows(len(rows), [SkippedRow(numbers[at], problem, text) for at, problem, text in first])
