"""Progress while a pipeline runs, and the account of it afterwards."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TextIO

from tuplewire.session.ledger import LedgerSnapshot
from tuplewire.text.shown import shown
from tuplewire_demos.input import SkippedRows
from tuplewire_service.command.terminal import console_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tuplewire_service.command.live_line import LiveLine

_PLAIN_SECONDS = 2.0
"""How often a line is written to what is no terminal."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Messages that the workers took from clients, and that the bolts have acknowledged, end marks too."""

    sent: int
    received: int

    def __sub__(self, earlier: Self) -> Traffic:
        return Traffic(self.sent - earlier.sent, self.received - earlier.received)


class Progress(AbstractContextManager["Progress"]):
    """Says what a run does, and how far it is: on a live line of a terminal, now and then elsewhere.

    It is its own context, which takes the live line away.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._live = _live_line(self._stream)
        self._started: float | None = None
        self._written = 0.0
        self._counted = False

    def __exit__(self, *_: object) -> None:
        self.end()

    def stage(self, text: str) -> None:
        """Say what begins now."""
        self.note(text)
        if self._live is not None:
            self._live.begin()

    def note(self, text: str) -> None:
        """Write a line that stays."""
        self.end()
        self._stream.write(f"{shown(text)}\n")
        self._stream.flush()

    def show(self, traffic: Traffic) -> None:
        """Show how far the messages are."""
        rate = traffic.received / self._seconds()
        if self._live is not None:
            self._live.show(f"sent {traffic.sent:,}, received {traffic.received:,}, {rate:,.0f} messages/s")
            return
        first = bool(traffic.received) and not self._counted
        self._counted = self._counted or first
        self._now_and_then(
            f"sent {traffic.sent:>12,}   received {traffic.received:>12,}   {rate:>10,.0f} messages/s",
            at_once=first,
        )

    def part(self, done: int, total: int, what: str) -> None:
        """Show how much of a known whole is done, how fast, and how long the rest takes at that rate."""
        rate = done / self._seconds()
        left = f", {(total - done) / rate:,.0f} s left" if done else ""
        share = done / max(total, 1)
        text = f"{share:4.0%} of {total:,} {what}, {rate:,.0f}/s{left}"
        if self._live is not None:
            self._live.show(text, share)
            return
        self._now_and_then(text)

    def line(self, text: str) -> None:
        """Show a line of another's."""
        if self._live is not None:
            self._live.show(text)
            return
        self._now_and_then(text)

    def wait(self, text: str) -> None:
        """Say on a terminal, and nowhere else, what the user waits for."""
        if self._live is not None:
            self._live.begin()
            self._live.show(text)

    def end(self) -> None:
        """Take the live line away until something is shown again; does nothing elsewhere."""
        if self._live is not None:
            self._live.end()

    def _seconds(self) -> float:
        """Return the time since something was shown first."""
        now = time.monotonic()
        if self._started is None:
            self._started = self._written = now
        return max(now - self._started, 0.001)

    def _now_and_then(self, line: str, *, at_once: bool = False) -> None:
        now = time.monotonic()
        if at_once or now - self._written >= _PLAIN_SECONDS:
            self._written = now
            self._stream.write(f"{line}\n")
            self._stream.flush()


def _live_line(stream: TextIO) -> LiveLine | None:
    console = console_of(stream)
    if console is None:
        return None
    from tuplewire_service.command.live_line import LiveLine

    return LiveLine(console)


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
