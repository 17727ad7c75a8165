"""Chaos: random faults in running programs, and a verdict on every message."""

from __future__ import annotations

import signal
import time
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from campaigns.campaign import Action, Campaign, schedule
from campaigns.chaos.ends import Within
from campaigns.chaos.faults import Kind, Targets
from campaigns.journal import history_of, records
from campaigns.programs import Program
from helpers.history import Verdict
from helpers.restartable import THIS_HOST, Host, RestartableWorker

from tuplewire.session.ledger import LedgerSnapshot
from tuplewire_service.testing.fault_proxy import Direction, FaultProxy

LATENCY_SECONDS = 0.01
"""Latency of each connection: some data is always in flight, so that a fault affects it."""
_EXIT_SECONDS = 10.0
_ENDS = "campaigns.chaos.ends"


def proxy(stack: ExitStack, target: str, listen: str = "127.0.0.1:0") -> FaultProxy:
    """Start a fault proxy with some latency."""
    started = stack.enter_context(FaultProxy(target, listen))
    started.delay(LATENCY_SECONDS)
    return started


class Chaos(Campaign):
    """A run with the faults that a seed selects, in programs that write journals."""

    parallel = True
    targets: Targets
    modes: Mapping[str, str]
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
    ) -> None:
        """Prepare a run. every: seconds between two faults. rate: messages per second of each sender."""
        super().__init__(seed, seconds, directory=directory)
        self.transport = transport
        self.every = every
        self.rate = rate
        self.programs: dict[str, Program] = {}
        self.proxies: Mapping[str, FaultProxy] = {}
        self.ledgers: dict[str, LedgerSnapshot] = {}

    @property
    @abstractmethod
    def weights(self) -> Mapping[Kind, int]:
        """The kinds of faults, each with its weight."""

    def plan(self) -> Iterator[Action]:
        return schedule(self.seed, self.seconds, self.every, self.weights, self.targets.draw)

    def launch(self, stack: ExitStack, name: str, config: Mapping[str, Any], host: Host = THIS_HOST) -> None:
        """Start a sender or receiver of campaigns.chaos.ends."""
        given = {"seed": self.seed, "rate": self.rate, "transport": self.transport, **config}
        if self.transport == "local":
            self.programs[name] = Within(_ENDS, name, given, self.directory)
            return
        started = Program(_ENDS, name, given, self.directory, host.entered)
        stack.callback(started.kill)
        self.programs[name] = started

    def end(self, names: Collection[str], deadline: float) -> None:
        """Stop programs at the same time. A program that misses the deadline is killed."""
        for name in names:
            self.programs[name].begin_end()
        for name in names:
            if code := self.programs[name].end(max(0.0, deadline - time.monotonic()) + _EXIT_SECONDS):
                self.faults.append(f"{name} has exited with code {code}; see its log")

    def look(self) -> str:
        """Record programs that have exited during the run."""
        for name, program in self.programs.items():
            if program.ended:
                self.faults.append(f"{name} has exited during the run; see its log")
        return ""

    def act(self, action: Action) -> None:
        """Inject a fault into a connection, or stop a program temporarily."""
        if action.kind in {Kind.STOP_PRODUCER, Kind.STOP_CONSUMER}:
            self.suspend(self.programs[action.target], action.seconds)
            return
        proxy = self.proxies[action.target]
        match action.kind:
            case Kind.BLACK_HOLE:
                proxy.black_hole()
            case Kind.HALF_OPEN:
                proxy.half_open(Direction(str(action.value)))
            case Kind.DELAY:
                proxy.delay(float(action.value))
            case Kind.THROTTLE:
                proxy.throttle(float(action.value))
        self.stop.wait(action.seconds)
        if action.cut or action.kind == Kind.CUT:
            proxy.cut()
        proxy.resume()
        proxy.delay(LATENCY_SECONDS)

    def suspend(self, process: Program | RestartableWorker, seconds: float) -> None:
        """Stop a process temporarily."""
        process.signal(signal.SIGSTOP)
        self.stop.wait(seconds)
        process.signal(signal.SIGCONT)

    def judge(self, killed: Collection[Path] = ()) -> None:
        """Merge the journals, and add every broken guarantee to the faults; killed: see history_of."""
        journals = (path for each in self.programs.values() for path in each.journals())
        self.verdict = history_of([self.journal_file, *journals], killed).verdict()
        self.faults += map(str, self.verdict.violations)
        if not self.verdict.ok:
            self.faults.append(str(self.verdict))
        self.ledgers = {
            name: LedgerSnapshot(**facts["ledger"])
            for name in self.modes
            for _, event, facts in records(self.programs[name].journals()[-1])
            if event == "settled"
        }

    def report(self) -> Iterator[str]:
        yield "faults: " + ", ".join(f"{number} {kind}" for kind, number in sorted(self.done.items()))
        for name, mode in self.modes.items():
            yield f"ledger of {name} ({mode}): {self.ledgers.get(name) or 'unknown, it did not finish'}"
        verdict = self.verdict
        yield (
            f"messages: {verdict.accepted:,} accepted, {verdict.received:,} received, "
            f"{verdict.redelivered:,} redelivered and marked, {verdict.dropped:,} dropped and reported, "
            f"{verdict.died:,} lost with killed workers that had them queued, "
            f"{verdict.overtaken:,} overtaken after the end of a worker before or during a move"
        )
        yield str(verdict)
