"""Chaos: random faults in running programs, and a verdict on every message."""

from __future__ import annotations

import signal
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from campaigns.campaign import Action, Campaign, schedule
from campaigns.chaos.faults import Kind, Targets
from campaigns.chaos.network import calm, disturb
from campaigns.journal import history_of, records
from helpers.history import Verdict

from tuplewire.session.ledger import LedgerSnapshot
from tuplewire_service.testing.fault_proxy import FaultProxy


class Journalled(Protocol):
    """A program with a journal of each of its lives."""

    def journals(self) -> list[Path]:
        """Return the journals."""


class Signalled(Protocol):
    """A process that receives signals, or an object that behaves like one."""

    def signal(self, number: signal.Signals, /) -> None:
        """Receive a signal."""


def final_ledgers(programs: Mapping[str, Journalled]) -> dict[str, LedgerSnapshot]:
    """Return the balance of each program that wrote one at its end."""
    return {
        name: LedgerSnapshot(**facts["ledger"])
        for name, program in programs.items()
        for _, event, facts in records(program.journals()[-1])
        if event == "settled"
    }


class Chaos(Campaign):
    """A run with the faults that a seed gives, in programs that write journals.

    Args:
        transport: Between workers, or between programs.
        every: The mean time between faults, in seconds.
        rate: The messages per second of each sender.
    """

    parallel = True
    targets: Targets
    modes: Mapping[str, str]
    """The acknowledgement mode of each sender."""
    verdict: Verdict

    def __init__(
        self,
        seed: int,
        seconds: float,
        *,
        directory: Path,
        transport: str,
        every: float = 1.0,
        rate: float = 2000.0,
        print_line: Callable[[str], None] = print,
    ) -> None:
        super().__init__(seed, seconds, directory=directory, print_line=print_line)
        self.transport = transport
        self.every = every
        self.rate = rate
        self.ledgers: dict[str, LedgerSnapshot] = {}
        """The final balance of each sender."""

    @property
    @abstractmethod
    def weights(self) -> Mapping[Kind, int]:
        """The kinds of faults, each with its weight."""

    def plan(self) -> Iterator[Action]:
        """See Campaign."""
        return schedule(self.seed, self.seconds, self.every, self.weights, self.targets.draw)

    def disturb(self, proxy: FaultProxy, action: Action) -> None:
        """Perform a fault of a way."""
        if action.kind == Kind.CUT:
            proxy.cut()
            return
        disturb(proxy, action)
        self.stop.wait(action.seconds)
        calm(proxy, action)

    def suspend(self, process: Signalled, seconds: float) -> None:
        """Stop a process for a while."""
        process.signal(signal.SIGSTOP)
        self.stop.wait(seconds)
        process.signal(signal.SIGCONT)

    def judge(self, programs: Mapping[str, Any], killed: Collection[Path] = ()) -> None:
        """Merge the journals, and add every broken promise to the faults."""
        journals: Iterable[Path] = (path for each in programs.values() for path in each.journals())
        self.verdict = history_of([self.journal_file, *journals], killed).verdict()
        self.ledgers = final_ledgers({name: programs[name] for name in self.modes})
        self.faults += map(str, self.verdict.violations)
        if not self.verdict.ok:
            self.faults.append(str(self.verdict))

    def report(self) -> Iterator[str]:
        """See Campaign."""
        yield "faults: " + ", ".join(f"{number} {kind}" for kind, number in sorted(self.done.items()))
        for name, mode in self.modes.items():
            yield f"ledger of {name} ({mode}): {self.ledgers.get(name) or 'unknown, it did not finish'}"
        verdict = self.verdict
        yield (
            f"messages: {verdict.accepted:,} accepted, {verdict.received:,} received, "
            f"{verdict.redelivered:,} redelivered and marked, {verdict.dropped:,} dropped and reported, "
            f"{verdict.died:,} lost with killed workers that had them queued, "
            f"{verdict.overtaken:,} overtaken after a kill during a move"
        )
        yield str(verdict)
