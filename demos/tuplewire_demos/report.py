"""The progress of a demo while it runs, and the summary at its end.

Used by all demos. Owns the live line on a terminal. Not thread-safe. See README.md.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TextIO

from tuplewire.session.ledger import LedgerSnapshot
from tuplewire.text.formatting import escape_unprintable
from tuplewire_demos.input import MAX_SHOWN_ROWS, SkippedRows
from tuplewire_service.command.terminal import progress_line, write_lines, write_table
from tuplewire_topology.running.statistics import ExecutorStatistics

_TOLERANCE = 1e-9
_SETTLE_SECONDS = 10.0
_POLL_SECONDS = 0.02
_PLAIN_INTERVAL_SECONDS = 2.0
"""The minimum time between two lines, if the stream is not a terminal."""


class Progress(AbstractContextManager["Progress"]):
    """Shows a run's stages and progress on a terminal's live line, or else in occasional lines."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._live = progress_line(self._stream)
        self._started_at: float | None = None
        self._written_at = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self.end()

    def start_stage(self, text: str) -> None:
        """Show the start of a stage."""
        self.note(text)
        if self._live is not None:
            self._live.restart()

    def note(self, text: str) -> None:
        """Write a permanent line."""
        self.end()
        write_lines(self._stream, text)

    def show_progress(self, done: int, total: int, unit: str) -> None:
        """Show the progress towards a known total, the rate, and the remaining time at that rate."""
        now = time.monotonic()
        self._started_at = self._started_at or now
        rate = done / max(now - self._started_at, 0.001)
        remaining = f", {(total - done) / rate:,.0f} s left" if done else ""
        share = done / max(total, 1)
        self.show_line(f"{share:4.0%} of {total:,} {unit}, {rate:,.0f}/s{remaining}", share)

    def show_line(self, text: str, share: float | None = None) -> None:
        """Show the progress; at most every 2 seconds if the stream is not a terminal."""
        if self._live is not None:
            self._live.show(text, share)
        elif (now := time.monotonic()) - self._written_at >= _PLAIN_INTERVAL_SECONDS:
            self._written_at = now
            write_lines(self._stream, text)

    def show_wait(self, text: str) -> None:
        """Show the reason for a wait, only on a terminal."""
        if self._live is not None:
            self._live.restart()
            self._live.show(text)

    def end(self) -> None:
        """Remove the live line, if any, until something is shown again."""
        if self._live is not None:
            self._live.end()


@dataclass(frozen=True, slots=True)
class RunReport:
    """The checks and statistics of a run.

    differences: from the expected result, as text; empty if equal. ledgers: by worker id, after the run.
    executors: their statistics at the end.
    """

    differences: Sequence[str]
    skipped: SkippedRows
    ledgers: Mapping[str, LedgerSnapshot]
    executors: Sequence[ExecutorStatistics]

    @property
    def is_correct(self) -> bool:
        """True if the result is right, and every ledger balances without dropped or pending messages."""
        return not self.differences and all(
            each.balanced and not each.pending and not any(each.dropped.values())
            for each in self.ledgers.values()
        )

    def write_summary(
        self, stream: TextIO, expected: str, rates: Iterable[str], *, verbose: bool = False
    ) -> None:
        """Write skipped rows, the comparison with `expected`, ledgers, rates; if `verbose`, executors too."""
        write_lines(stream, "", *self._lines(expected), *rates)
        if verbose:
            names = ("emitted", "transferred", "executed", "acked", "failed")
            stream.write("\n")
            rows = []
            for each in sorted(self.executors, key=lambda each: (each.component, each.tasks[0])):
                counts = [f"{getattr(each.counts, name):,}" for name in names]
                rows.append([each.component, f"{each.tasks[0]}-{each.tasks[-1]}", *counts])
            write_table(stream, ("executor", "tasks", *names), rows)

    def _lines(self, expected: str) -> Iterator[str]:
        count, first = self.skipped.count, self.skipped.first
        if count:
            yield f"Skipped {count:,} bad row(s):"
            yield from (f"  line {row.line:,} {row.reason}: {escape_unprintable(row.text)}" for row in first)
        if count > len(first):
            yield f"  ... and {count - len(first):,} more"
        if self.differences:
            yield f"NOT equal to {expected}:"
            yield from (f"  {difference}" for difference in self.differences[:MAX_SHOWN_ROWS])
        else:
            yield f"Equal to {expected}: yes"
        for worker_id, ledger in self.ledgers.items():
            if ledger.accepted:  # tuples within one worker are not messages
                verdict = "balances" if ledger.balanced else "DOES NOT BALANCE"
                yield f"Ledger of {worker_id}: {ledger} ({verdict})"


def compare_results(got: Mapping[str, Any], expected: Mapping[str, Any], expected_name: str) -> list[str]:
    """Return the differences of two results by name, as text. Floats may differ by 1e-9."""
    wrong = (name for name in got.keys() | expected.keys() if not _same(got.get(name), expected.get(name)))
    return [
        escape_unprintable(f"{name} is {got.get(name)}, {expected_name} has {expected.get(name)}")
        for name in sorted(wrong)
    ]


def _same(one: object, other: object) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
    return one == other


def wait_until_settled(read_ledgers: Callable[[], dict[str, LedgerSnapshot]]) -> dict[str, LedgerSnapshot]:
    """Return the workers' ledgers when nothing is pending, or after 10 s. Acknowledgements arrive last."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    while True:
        ledgers = read_ledgers()
        if not any(each.pending for each in ledgers.values()) or time.monotonic() > deadline:
            return ledgers
        time.sleep(_POLL_SECONDS)
