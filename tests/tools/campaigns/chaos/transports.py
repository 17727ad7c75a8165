"""Chaos on a transport: random faults between `connect().send` and a `bind` callback, and a verdict.

Senders and receivers are processes of their own; ways between them are cut, delayed and silenced, processes
are stopped, killed and restarted. The transport `local` has neither ways nor processes: there its ends are
stopped, aborted and closed within one process.

Exit status: 0 when every promise was kept; 1 when not, with what was broken.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from campaigns.chaos.ends import ENDS, End
from campaigns.chaos.faults import Fault, Kind, of_a_way, schedule, times
from campaigns.chaos.inject import Injector
from campaigns.chaos.journal import Journal, history_of, records
from campaigns.chaos.layout import way
from campaigns.chaos.network import LATENCY_SECONDS, calm, disturb
from campaigns.chaos.programs import Program
from helpers.history import Verdict

from tuplewire.session.ledger import LedgerSnapshot
from tuplewire_service.testing import eventually
from tuplewire_service.testing.fault_proxy import FaultProxy

RECEIVERS = {"receiver-0": (10, 11), "receiver-1": (12, 13)}
SENDERS = {"sender-0": "queued", "sender-1": "processed", "sender-2": "queued"}
_WAYS = [way(sender, receiver) for sender in SENDERS for receiver in RECEIVERS]

_WEIGHTS = {
    Kind.CUT: 4,
    Kind.BLACK_HOLE: 3,
    Kind.DELAY: 2,
    Kind.THROTTLE: 2,
    Kind.HALF_OPEN: 3,
    Kind.STOP_PRODUCER: 2,
    Kind.STOP_CONSUMER: 2,
    Kind.KILL_PRODUCER: 2,
    Kind.KILL_CONSUMER: 2,
    Kind.RESTART_CONSUMER: 2,
}
_OF_WAYS = (Kind.CUT, Kind.BLACK_HOLE, Kind.DELAY, Kind.THROTTLE, Kind.HALF_OPEN)
_START_SECONDS = 30.0
_END_SECONDS = 90.0


def weights_of(transport: str) -> dict[Kind, int]:
    """Return the faults that a transport can have, and how often each comes."""
    return {kind: weight for kind, weight in _WEIGHTS.items() if transport != "local" or kind not in _OF_WAYS}


def plan(transport: str, seed: int, seconds: float, every: float) -> Iterator[Fault]:
    """Return the faults of a run."""
    return schedule(seed, seconds, every, weights_of(transport), _draw)


def _draw(chance: random.Random, at: float, kind: Kind) -> Fault:
    drawn = times(chance)
    match kind:
        case Kind.STOP_PRODUCER:
            return Fault(at, kind, chance.choice(list(SENDERS)), drawn.silence)
        case Kind.STOP_CONSUMER:
            return Fault(at, kind, chance.choice(list(RECEIVERS)), drawn.silence)
        case Kind.KILL_PRODUCER:
            return Fault(at, kind, chance.choice(list(SENDERS)))
        case Kind.KILL_CONSUMER | Kind.RESTART_CONSUMER:
            return Fault(at, kind, chance.choice(list(RECEIVERS)), round(chance.uniform(0.1, 2.0), 2))
    return of_a_way(chance, at, kind, drawn, _WAYS)


class Life(Protocol):
    """What becomes of an end: a process, or an object of this one."""

    name: str

    def signal(self, number: signal.Signals, /) -> None:
        """Stop it, or let it go on."""

    def kill(self) -> None:
        """End it at once."""

    def start(self) -> None:
        """Begin its next life."""

    def end(self, timeout: float, /) -> int:
        """End it in good order."""

    def journals(self) -> list[Path]:
        """Return those of all its lives."""


class Within:
    """An end within this process, see Program."""

    def __init__(self, make: Callable[[dict[str, Any]], End], name: str, config: dict[str, Any]) -> None:
        self.name = name
        self._make = make
        self._config = config
        self._directory = Path(config["directory"])
        self._lives = 0
        self.start()

    def start(self) -> None:
        """See Life."""
        self._lives += 1
        life = f"{self.name}.{self._lives}"
        journal = str(self._directory / f"{life}.jsonl")
        self._end = self._make({**self._config, "name": life, "journal": journal})

    def signal(self, number: signal.Signals) -> None:
        """See Life."""
        (self._end.pause if number is signal.SIGSTOP else self._end.go_on)()

    def kill(self) -> None:
        """See Life."""
        self._end.kill()

    def end(self, timeout: float) -> int:
        """See Life."""
        del timeout  # it has its own
        return self._end.finish()

    def journals(self) -> list[Path]:
        """See Life."""
        return [self._directory / f"{self.name}.{life}.jsonl" for life in range(1, self._lives + 1)]


@dataclass
class Outcome:
    """What a run has come to; see chaos.campaign."""

    verdict: Verdict
    faults: Counter[str] = field(default_factory=Counter)
    senders: dict[str, LedgerSnapshot] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every promise was kept and every process has done its part."""
        return self.verdict.ok and not self.problems

    def report(self) -> Iterator[str]:
        """Return the lines that tell it."""
        verdict = self.verdict
        yield "faults: " + ", ".join(f"{number} {kind}" for kind, number in sorted(self.faults.items()))
        for name, ledger in self.senders.items():
            yield f"ledger of {name} ({SENDERS[name]}): {ledger}"
        yield (
            f"messages: {verdict.accepted:,} accepted, {verdict.received:,} received, "
            f"{verdict.redelivered:,} redelivered and marked"
        )
        yield from self.problems
        yield from map(str, verdict.violations)
        yield str(verdict)


class TransportInjector(Injector):
    """The faults of a run with a transport alone."""

    def __init__(
        self,
        ends: dict[str, Life],
        proxies: dict[str, FaultProxy],
        journal: Journal,
        say: Callable[[str], None],
    ) -> None:
        super().__init__(say)
        self.killed: set[Path] = set()
        """The journals of senders that were killed."""
        self.problems: list[str] = []
        self._ends = ends
        self._proxies = proxies
        self._journal = journal

    def _happens(self, fault: Fault) -> None:
        match fault.kind:
            case Kind.CUT:
                self._proxies[fault.target].cut()
            case Kind.BLACK_HOLE | Kind.HALF_OPEN | Kind.DELAY | Kind.THROTTLE:
                disturb(self._proxies[fault.target], fault)
                self._stop.wait(fault.seconds)
                calm(self._proxies[fault.target], fault)
            case Kind.STOP_PRODUCER | Kind.STOP_CONSUMER:
                self._suspend(self._ends[fault.target], fault.seconds)
            case Kind.KILL_PRODUCER:
                end = self._ends[fault.target]
                end.kill()
                self.killed.update(end.journals())
                end.start()
            case Kind.KILL_CONSUMER | Kind.RESTART_CONSUMER:
                end = self._ends[fault.target]
                killed = fault.kind is Kind.KILL_CONSUMER
                if killed:
                    end.kill()
                elif code := end.end(_END_SECONDS):
                    self.problems.append(f"{fault.target} was closed and ended with code {code}")
                self._journal.write("worker_ended", worker=fault.target, killed=killed)
                self._stop.wait(fault.seconds)
                end.start()


class TransportCampaign:
    """A run of so many seconds over one transport, with the faults that a seed gives."""

    def __init__(
        self,
        transport: str,
        seed: int,
        seconds: float,
        *,
        directory: Path,
        every: float = 1.0,
        rate: float = 2000.0,
        say: Callable[[str], None] = print,
    ) -> None:
        self._transport = transport
        self._seed = seed
        self._seconds = seconds
        self._every = every
        self._rate = rate
        self._directory = directory
        self._print = say
        self._start = time.monotonic()
        self._ends: dict[str, Life] = {}

    def _say(self, text: str) -> None:
        self._print(f"{time.monotonic() - self._start:7.1f} s  {text}")

    def run(self) -> Outcome:
        """Run, and judge."""
        run_journal = self._directory / "run.jsonl"
        seen: Counter[str] = Counter()
        with ExitStack() as stack:
            journal = Journal(run_journal)
            stack.callback(journal.close)
            stack.callback(self._abort)
            proxies = self._begin(stack)
            start = time.monotonic()
            with TransportInjector(self._ends, proxies, journal, self._say) as injector:
                for fault in plan(self._transport, self._seed, self._seconds, self._every):
                    time.sleep(max(0.0, start + fault.at - time.monotonic()))
                    seen[fault.kind] += 1
                    injector.begin(fault)
                time.sleep(max(0.0, start + self._seconds - time.monotonic()))
            self._say("everything has healed; waiting until all is settled")
            problems = [*injector.problems, *self._finish()]
        journals = [run_journal, *(path for end in self._ends.values() for path in end.journals())]
        return Outcome(history_of(journals, injector.killed).verdict(), seen, self._ledgers(), problems)

    def _begin(self, stack: ExitStack) -> dict[str, FaultProxy]:
        ports = {name: self._directory / f"{name}.port" for name in RECEIVERS}
        for name in RECEIVERS:
            self._launch("receiver", name, {"port_file": str(ports[name])})
        proxies = {}
        for receiver, file in ports.items():
            eventually(file.exists, _START_SECONDS, f"{receiver} is bound")
            for sender in SENDERS if self._transport != "local" else ():
                proxy = stack.enter_context(FaultProxy(f"127.0.0.1:{int(file.read_text())}"))
                proxy.delay(LATENCY_SECONDS)
                proxies[way(sender, receiver)] = proxy

        def port(sender: str, receiver: str) -> int:
            proxy = proxies.get(way(sender, receiver))
            return int(proxy.address.rpartition(":")[2] if proxy else ports[receiver].read_text())

        for source, (sender, mode) in enumerate(SENDERS.items()):
            receivers: Sequence[Any] = [[port(sender, each), tasks] for each, tasks in RECEIVERS.items()]
            self._launch("sender", sender, {"source": source, "mode": mode, "receivers": receivers})
        return proxies

    def _launch(self, role: str, name: str, config: dict[str, Any]) -> None:
        common = {"role": role, "transport": self._transport, "seed": self._seed, "rate": self._rate}
        config = {**config, **common, "directory": str(self._directory)}
        self._ends[name] = (
            Within(ENDS[role], name, config)
            if self._transport == "local"
            else Program("campaigns.chaos.ends", name, config, self._directory)
        )

    def _finish(self) -> Iterator[str]:
        """End the senders, which wait until all is settled, then the receivers; say what was wrong."""
        codes: dict[str, int] = {}

        def end(name: str) -> None:
            codes[name] = self._ends[name].end(_END_SECONDS)

        threads = [threading.Thread(target=end, args=(name,)) for name in SENDERS]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        codes |= {name: self._ends[name].end(_END_SECONDS) for name in RECEIVERS}
        return (f"{name} has ended with code {code}" for name, code in codes.items() if code)

    def _abort(self) -> None:
        for end in self._ends.values():
            if isinstance(end, Program):
                end.kill()

    def _ledgers(self) -> dict[str, LedgerSnapshot]:
        return {
            name: LedgerSnapshot(**facts["ledger"])
            for name in SENDERS
            for _, event, facts in records(self._ends[name].journals()[-1])
            if event == "settled"
        }


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="make chaos-transport",
        description=__doc__,
        epilog="example:\n  make chaos-transport TRANSPORT=zmq SEED=7 MINUTES=2",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--transport", default="zmq", help="local, grpc, zmq or another (default: zmq)")
    parser.add_argument("--seed", type=int, help="of the faults (default: another one each time)")
    parser.add_argument("--minutes", type=float, default=1.0, help="how long (default: 1)")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between faults (default: 1)")
    parser.add_argument("--rate", type=float, default=2000.0, help="messages per second of each sender")
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else time.time_ns() % 1_000_000
    directory = Path(tempfile.mkdtemp(prefix="tuplewire-chaos-"))
    print(f"{arguments.transport}, seed {seed}; journals and logs in {directory}", flush=True)
    outcome = TransportCampaign(
        arguments.transport,
        seed,
        arguments.minutes * 60,
        directory=directory,
        every=arguments.every,
        rate=arguments.rate,
        say=partial(print, flush=True),
    ).run()
    print("\n".join(outcome.report()))
    if outcome.ok:
        shutil.rmtree(directory)
        return 0
    print(f"FAILED; journals and logs stay in {directory}")
    print(f"again: make chaos-transport TRANSPORT={arguments.transport} SEED={seed}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
