"""What a word count has found, whether it is right, and the account of the run."""

from __future__ import annotations

import csv
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from operator import itemgetter
from pathlib import Path
from typing import Any, TextIO

from tuplewire.session.ledger import LedgerSnapshot
from tuplewire_demos.input import SHOWN_ROWS, InputError, SkippedRow, SkippedRows
from tuplewire_demos.report import is_clean, write_ledgers, write_skipped
from tuplewire_demos.words import lines_of
from tuplewire_service.command.terminal import write_table, write_text
from tuplewire_topology.running.statistics import ExecutorStatistics

SHOWN_WORDS = 20
SHOWN_DIFFERENCES = 5


@dataclass(frozen=True, slots=True)
class WordCounts:
    """A finished run. executors, ledgers: as they were when all was done; ledgers by worker."""

    counts: Mapping[str, int]
    differences: Sequence[str]
    skipped: SkippedRows
    seconds: float
    executors: Sequence[ExecutorStatistics]
    ledgers: Mapping[str, LedgerSnapshot]

    @property
    def ok(self) -> bool:
        """Whether the answer is right, and every ledger adds up with nothing dropped or pending."""
        return not self.differences and all(map(is_clean, self.ledgers.values()))


def expected_counts(path: Path) -> Counter[str]:
    """Return what collections.Counter makes of a file's words; lines that are not UTF-8 are left out."""
    counts: Counter[str] = Counter()
    for _, line in _numbered(path):
        if _is_text(line):
            counts.update(line.decode().split())
    return counts


def differences_of(counts: Mapping[str, int], wanted: Mapping[str, int]) -> list[str]:
    """Say in what two results differ, at most SHOWN_DIFFERENCES of it."""
    words = (word for word in counts.keys() | wanted.keys() if counts.get(word) != wanted.get(word))
    return [
        f"{word!r}: {counts.get(word)}, Counter has {wanted.get(word)}"
        for word in sorted(words)[:SHOWN_DIFFERENCES]
    ]


def skipped_lines(path: Path, rows: Sequence[tuple[Any, ...]]) -> SkippedRows:
    """Return what was left out, with line numbers; reads the file again where anything was.

    rows: offset, problem and text of each, in the order of each part of the file.
    """
    first = sorted(rows, key=itemgetter(0))[:SHOWN_ROWS]
    wanted = {offset for offset, _, _ in first}
    numbers: defaultdict[int, list[int]] = defaultdict(list)
    for number, (offset, line) in enumerate(_numbered(path) if first else (), 1):
        if offset in wanted and not _is_text(line):
            numbers[offset].append(number)
    return SkippedRows(
        len(rows), [SkippedRow(numbers[offset].pop(0), problem, text) for offset, problem, text in first]
    )


def _numbered(path: Path) -> Iterable[tuple[int, bytes]]:
    """Yield every line with the offset at which what lines_of() takes begins."""
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
    """Write the commonest words and the account; verbose: what each executor has done, too."""
    common = sorted(result.counts.items(), key=lambda pair: (-pair[1], pair[0]))[:SHOWN_WORDS]
    write_table(stream, ("word", "count"), ((word, f"{count:,}") for word, count in common))
    if len(result.counts) > len(common):
        stream.write(f"... and {len(result.counts) - len(common):,} more words\n")
    account = StringIO()
    _write_account(account, result)
    write_text(stream, f"\n{account.getvalue()}")
    if verbose:
        stream.write("\n")
        _write_executors(stream, result.executors)


def _write_account(stream: TextIO, result: WordCounts) -> None:
    write_skipped(stream, result.skipped)
    if result.differences:
        stream.write("This is NOT what collections.Counter gives on the same lines:\n")
        stream.writelines(f"  {difference}\n" for difference in result.differences)
    else:
        stream.write("Equal to collections.Counter on the same lines: yes\n")
    write_ledgers(stream, result.ledgers)
    words = sum(result.counts.values())
    rate = words / max(result.seconds, 0.001)
    stream.write(f"{words:,} words in {result.seconds:.1f} s: {rate:,.0f} words/s\n")


def _write_executors(stream: TextIO, executors: Sequence[ExecutorStatistics]) -> None:
    """Write what each executor has done, in tuples."""
    write_table(
        stream,
        ("executor", "tasks", "emitted", "transferred", "executed", "acked", "failed"),
        (
            (
                each.component,
                f"{each.tasks[0]}-{each.tasks[-1]}",
                *(
                    f"{number:,}"
                    for number in (
                        each.counts.emitted,
                        each.counts.transferred,
                        each.counts.executed,
                        each.counts.acked,
                        each.counts.failed,
                    )
                ),
            )
            for each in sorted(executors, key=lambda each: (each.component, each.tasks[0]))
        ),
    )


def write_csv(directory: Path, counts: Mapping[str, int]) -> None:
    """Write all words into a new directory, as CSV with a header; InputError where that cannot be done."""
    try:
        directory.mkdir(parents=True)
        with (directory / "counts.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("word", "count"))
            writer.writerows(sorted(counts.items()))
    except OSError as error:
        raise InputError(f"cannot write the output {directory}: {error.strerror}") from error
