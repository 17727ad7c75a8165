"""The result of a word count, its check, and the account of the run.

Used by run_wordcount.py. Owns no state. Thread-safe.
"""

from __future__ import annotations

import csv
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, TextIO

from tuplewire_demos.input import SHOWN_ROWS, InputError, SkippedRow, SkippedRows
from tuplewire_demos.report import Findings
from tuplewire_demos.words import lines_of
from tuplewire_service.command.terminal import write_table, write_text
from tuplewire_topology.running.statistics import ExecutorStatistics

SHOWN_WORDS = 20
SHOWN_DIFFERENCES = 5


@dataclass(frozen=True, slots=True)
class WordCounts(Findings):
    """The results of a finished run. executors: their statistics at the end."""

    counts: Mapping[str, int]
    seconds: float
    executors: Sequence[ExecutorStatistics]


def expected_counts(path: Path) -> Counter[str]:
    """Count a file's words with collections.Counter, except in lines that are not UTF-8."""
    counts: Counter[str] = Counter()
    for _, line in _numbered(path):
        if _is_text(line):
            counts.update(line.decode().split())
    return counts


def differences_of(counts: Mapping[str, int], wanted: Mapping[str, int]) -> list[str]:
    """Return the differences of two results as text, at most SHOWN_DIFFERENCES."""
    words = (word for word in counts.keys() | wanted.keys() if counts.get(word) != wanted.get(word))
    return [
        f"{word!r}: {counts.get(word)}, Counter has {wanted.get(word)}"
        for word in sorted(words)[:SHOWN_DIFFERENCES]
    ]


def skipped_lines(path: Path, rows: Sequence[tuple[Any, ...]]) -> SkippedRows:
    """Return the skipped lines with their numbers. If there are any, this reads the file again.

    rows: offset, problem and text of each, in order within each part of the file.
    """
    first = sorted(rows, key=itemgetter(0))[:SHOWN_ROWS]
    wanted = {offset for offset, _, _ in first}
    numbers: defaultdict[int, list[int]] = defaultdict(list)  # with carriage returns, lines share an offset
    for number, (offset, line) in enumerate(_numbered(path) if first else (), 1):
        if offset in wanted and not _is_text(line):
            numbers[offset].append(number)
    return SkippedRows(
        len(rows), [SkippedRow(numbers[offset].pop(0), problem, text) for offset, problem, text in first]
    )


def _numbered(path: Path) -> Iterable[tuple[int, bytes]]:
    """Yield every line with the offset of the bytes from which lines_of() returned it."""
    offset = 0
    with path.open("rb") as file:
        for raw in file:
            for line in lines_of(raw, offset):
                yield offset, line
            offset += len(raw)


def _is_text(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def write_words(stream: TextIO, result: WordCounts, *, verbose: bool) -> None:
    """Write the most frequent words and the account; with `verbose`, also the executors' statistics."""
    common = sorted(result.counts.items(), key=lambda pair: (-pair[1], pair[0]))[:SHOWN_WORDS]
    write_table(stream, ("word", "count"), ((word, f"{count:,}") for word, count in common))
    if len(result.counts) > len(common):
        stream.write(f"... and {len(result.counts) - len(common):,} more words\n")
    words = sum(result.counts.values())
    rate = words / max(result.seconds, 0.001)
    lines = ["", *result.lines("collections.Counter on the same lines")]
    lines.append(f"{words:,} words in {result.seconds:.1f} s: {rate:,.0f} words/s")
    write_text(stream, "".join(f"{line}\n" for line in lines))
    if verbose:
        stream.write("\n")
        _write_executors(stream, result.executors)


def _write_executors(stream: TextIO, executors: Sequence[ExecutorStatistics]) -> None:
    """Write each executor's counts of tuples."""
    names = ("emitted", "transferred", "executed", "acked", "failed")
    write_table(
        stream,
        ("executor", "tasks", *names),
        (
            (
                each.component,
                f"{each.tasks[0]}-{each.tasks[-1]}",
                *(f"{getattr(each.counts, name):,}" for name in names),
            )
            for each in sorted(executors, key=lambda each: (each.component, each.tasks[0]))
        ),
    )


def write_csv(directory: Path, counts: Mapping[str, int]) -> None:
    """Write all words to a new directory, as CSV with a header. Raises InputError if this fails."""
    try:
        directory.mkdir(parents=True)
        with (directory / "counts.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("word", "count"))
            writer.writerows(sorted(counts.items()))
    except OSError as error:
        raise InputError(f"cannot write the output {directory}: {error.strerror}") from error
