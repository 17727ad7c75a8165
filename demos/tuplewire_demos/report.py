"""Progress while a pipeline runs, and the account of it afterwards."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TextIO

from tuplewire.session.ledger import LedgerSnapshot
from tuplewire.shown import shown
from tuplewire_demos.input import SkippedRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PLAIN_SECONDS = 2.0
"""How often a line is written to what is no terminal."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Messages that the workers took from clients, and that the bolts have acknowledged, end marks too."""

    sent: int
    received: int

    def __sub__(self, earlier: Self) -> Traffic:
        return Traffic(self.sent - earlier.sent, self.received - earlier.received)


class Progress:
    """One line on a terminal that is written over; plain lines, fewer, elsewhere."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._live = self._stream.isatty()
        self._width = 0
        self._started: float | None = None
        self._shown = 0.0
        self._counted = False

    def stage(self, text: str) -> None:
        """Say what begins now."""
        self.end()
        self._stream.write(f"{text}\n")
        self._stream.flush()

    def show(self, traffic: Traffic) -> None:
        """Show how far the messages are."""
        now = time.monotonic()
        if self._started is None:
            self._started = self._shown = now
        first = bool(traffic.received) and not self._counted
        if not first and not self._live and now - self._shown < _PLAIN_SECONDS:
            return
        self._shown, self._counted = now, self._counted or first
        rate = traffic.received / max(now - self._started, 0.001)
        self._write(
            f"sent {traffic.sent:>12,}   received {traffic.received:>12,}   {rate:>10,.0f} messages/s"
        )

    def part(self, done: int, total: int, what: str) -> None:
        """Show how much of a known whole is done, how fast, and how long the rest takes at that rate."""
        now = time.monotonic()
        if self._started is None:
            self._started = self._shown = now
        if not self._live and now - self._shown < _PLAIN_SECONDS:
            return
        self._shown = now
        rate = done / max(now - self._started, 0.001)
        left = f", {(total - done) / rate:,.0f} s left" if done else ""
        share = done / max(total, 1)
        self._write(f"{share:4.0%} of {total:,} {what}, {rate:,.0f}/s{left}")

    def line(self, text: str) -> None:
        """Show a line of another's."""
        now = time.monotonic()
        if self._live or now - self._shown >= _PLAIN_SECONDS:
            self._shown = now
            self._write(text)

    def _write(self, line: str) -> None:
        if self._live:
            self._stream.write(f"\r{line:<{self._width}}")
            self._width = len(line)
        else:
            self._stream.write(f"{line}\n")
        self._stream.flush()

    def end(self) -> None:
        """Leave the line that is being written over; does nothing when there is none."""
        if self._width:
            self._stream.write("\n")
            self._stream.flush()
            self._width = 0


@dataclass(frozen=True, slots=True)
class Round:
    """One time through the input.

    seconds: from the spouts' start to the last bolt's end, with Spark's reading. sending: what it took the
    spouts to pack and send, receiving: the bolts to unpack and count; each is the sum of its tasks.
    """

    seconds: float
    sending: float
    receiving: float


@dataclass(frozen=True, slots=True)
class Account:
    """The messages and end marks of all rounds; crossed: those that went from worker to worker."""

    messages: int
    crossed: int
    marks: int
    crossed_marks: int

    @property
    def accepted(self) -> int:
        """What the workers have accepted together: a message that crosses is accepted twice."""
        return self.messages + self.crossed + self.marks + self.crossed_marks


@dataclass(frozen=True, slots=True)
class RunResult:
    """A finished run.

    table: the result. differences: from Spark's own answer to the same question, in words; none: equal.
    rows: what went through in each round. alone: what Spark takes to read the same rows and send none, in
    seconds. ledgers: by worker id, when all was done.
    """

    table: DataFrame
    differences: Sequence[str]
    skipped: SkippedRows
    rows: int
    rounds: Sequence[Round]
    account: Account
    alone: float
    ledgers: Mapping[str, LedgerSnapshot]

    @property
    def ok(self) -> bool:
        """Whether the answer is Spark's, and every ledger adds up with nothing dropped or pending."""
        return not self.differences and all(map(is_clean, self.ledgers.values()))


def write_account(stream: TextIO, result: RunResult) -> None:
    """Write what was skipped, whether the result is right, the ledgers and the rate."""
    write_skipped(stream, result.skipped)
    if result.differences:
        stream.write("This is NOT what Spark's own groupBy gives on the same rows:\n")
        stream.writelines(f"  {difference}\n" for difference in result.differences)
    else:
        stream.write("Equal to Spark's own groupBy on the same rows: yes\n")
    write_ledgers(stream, result.ledgers)
    _write_rates(stream, result)


def _write_rates(stream: TextIO, result: RunResult) -> None:
    """Write what the ledgers' sum consists of, and what the messaging and Spark take, each by itself."""
    account, rows = result.account, result.rows
    stream.write(
        f"Accepted together: {account.messages:,} messages + {account.crossed:,} that crossed, once more "
        f"+ {account.marks:,} end marks + {account.crossed_marks:,} that crossed = {account.accepted:,}\n"
    )
    for number, each in enumerate(result.rounds, 1):
        name = f"Round {number}: " if len(result.rounds) > 1 else ""
        busy = each.sending + each.receiving
        stream.write(
            f"{name}{rows:,} flights in {each.seconds:.2f} s, with Spark's reading: "
            f"{rows / each.seconds:,.0f} flights/s\n"
            f"{name}messaging: {each.sending:.2f} s to send, {each.receiving:.2f} s to receive and count: "
            f"{rows / busy:,.0f} flights/s\n"
        )
    stream.write(f"Spark alone, which reads the same rows and sends none: {result.alone:.2f} s\n")


def write_ledgers(stream: TextIO, ledgers: Mapping[str, LedgerSnapshot]) -> None:
    """Write the ledger of each worker, and whether it adds up."""
    for worker_id, ledger in ledgers.items():
        verdict = "balances" if ledger.balanced else "DOES NOT BALANCE"
        stream.write(f"Ledger of {worker_id}: {ledger} ({verdict})\n")


def is_clean(ledger: LedgerSnapshot) -> bool:
    """Whether a ledger adds up, with nothing pending or dropped."""
    return ledger.balanced and not ledger.pending and not any(ledger.dropped.values())


def write_skipped(stream: TextIO, skipped: SkippedRows) -> None:
    """Write how many rows were left out, and the first of them; nothing where there are none."""
    if not skipped.count:
        return
    stream.write(f"Skipped {skipped.count:,} bad row(s):\n")
    stream.writelines(f"  line {row.line:,} {row.problem}: {shown(row.text)}\n" for row in skipped.first)
    if skipped.count > len(skipped.first):
        stream.write(f"  ... and {skipped.count - len(skipped.first):,} more\n")
