"""The result of a word count, its check, and the account of the run.

Used by run_wordcount.py. Owns no state. Thread-safe.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from tuplewire_demos.file_spout import numbered_lines
from tuplewire_demos.input import InputError
from tuplewire_demos.report import Findings, write_executors
from tuplewire_service.command.terminal import write_table, write_text

SHOWN_WORDS = 20


@dataclass(frozen=True, slots=True)
class WordCounts(Findings):
    """The results of a finished run."""

    counts: Mapping[str, int]
    seconds: float


def expected_counts(path: Path) -> Counter[str]:
    """Count a file's words with collections.Counter, except in lines that are not UTF-8."""
    counts: Counter[str] = Counter()
    for _, line in numbered_lines(path):
        with suppress(UnicodeDecodeError):
            counts.update(line.decode().split())
    return counts


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
        write_executors(stream, result.executors)


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
