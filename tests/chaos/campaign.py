"""One chaos run from its start to its verdict."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from chaos.cluster import Cluster
from chaos.faults import plan
from chaos.inject import ClusterInjector
from chaos.journal import Journal, history_of, records
from chaos.layout import CONSUMERS, PRODUCERS, TASKS, TOPOLOGY, WORKERS
from chaos.network import Network
from chaos.programs import Program

from tuplewire.control import ControlClient
from tuplewire.session.ledger import LedgerSnapshot
from tuplewire_service.testing import Fate
from tuplewire_service.testing.history import Verdict

_PROGRESS_SECONDS = 5.0
_READY_SECONDS = 30.0
_END_SECONDS = 60.0
"""How long it may take, after everything has healed, until all is delivered."""
_EXIT_SECONDS = 10.0


@dataclass
class Outcome:
    """What a run has come to.

    problems: what went wrong apart from the messages: balances that do not add up, processes that failed,
    messages that did not arrive in time.
    """

    verdict: Verdict
    faults: Counter[str] = field(default_factory=Counter)
    control: Counter[Fate] = field(default_factory=Counter)
    workers: dict[str, LedgerSnapshot | None] = field(default_factory=dict)
    producers: dict[str, LedgerSnapshot] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every promise was kept and every process has done its part."""
        return self.verdict.ok and not self.problems


class Campaign:
    """A run of so many seconds, with the faults that a seed gives.

    transport: between the workers. every: the mean time between faults, in seconds. rate: of each producer,
    in messages per second. directory: for journals and logs. say: prints a line, which gets the time.
    """

    def __init__(
        self,
        seed: int,
        seconds: float,
        *,
        directory: Path,
        transport: str = "grpc",
        every: float = 1.0,
        rate: float = 2000.0,
        say: Callable[[str], None] = print,
    ) -> None:
        self._seed = seed
        self._seconds = seconds
        self._transport = transport
        self._every = every
        self._rate = rate
        self._directory = directory
        self._print = say
        self._start = time.monotonic()
        self._problems: list[str] = []
        self._programs: dict[str, Program] = {}
        self._seen: Counter[str] = Counter()

    def _say(self, text: str) -> None:
        self._print(f"{time.monotonic() - self._start:7.1f} s  {text}")

    def run(self) -> Outcome:
        """Run, and judge."""
        journal_file = self._directory / "run.jsonl"
        with ExitStack() as stack:
            journal = Journal(journal_file)
            stack.callback(journal.close)
            cluster = Cluster(self._directory, journal, self._transport)
            stack.callback(cluster.stop)
            network = stack.enter_context(Network(cluster.endpoints, self._directory, self._seed))
            stack.callback(self._abort)
            self._begin(cluster, network, journal)
            self._disturb(cluster, network)
            self._say("everything has healed; waiting until all is delivered")
            workers = self._finish(cluster)
            self._check_drains(cluster.stop())
            control: Counter[Fate] = Counter()
            for each in network.control.values():
                for (_, fate), number in each.counts.items():
                    control[fate] += number
        journals = [journal_file, *(path for each in self._programs.values() for path in each.journals())]
        return Outcome(
            history_of(journals).verdict(),
            self._seen,
            control,
            workers,
            self._producer_ledgers(),
            self._problems,
        )

    # --- the parts of it ---------------------------------------------------------------------------

    def _begin(self, cluster: Cluster, network: Network, journal: Journal) -> None:
        cluster.publish(network.address, list(WORKERS))
        for slot in cluster.slots.values():
            with ControlClient(slot.endpoint.address) as control:
                control.wait_ready(_READY_SECONDS)
        for consumer in CONSUMERS:
            self._programs[consumer.name] = Program(
                "chaos.consumer",
                consumer.name,
                {
                    "topology": TOPOLOGY,
                    "tasks": consumer.tasks,
                    "workers": {worker: network.address(consumer.name, worker) for worker in WORKERS},
                },
                self._directory,
            )
        for producer in PRODUCERS:
            journal.write("source", source=producer.source, mode=producer.mode, worker=producer.worker)
            self._programs[producer.name] = Program(
                "chaos.producer",
                producer.name,
                {
                    "topology": TOPOLOGY,
                    "address": network.address(producer.name, producer.worker),
                    "source": producer.source,
                    "mode": producer.mode,
                    "tasks": TASKS,
                    "seed": self._seed + producer.source,
                    "rate": self._rate,
                    "flush_seconds": _END_SECONDS,
                },
                self._directory,
            )

    def _abort(self) -> None:
        for program in self._programs.values():
            program.end(0.0 if not program.ended else _EXIT_SECONDS)

    def _disturb(self, cluster: Cluster, network: Network) -> None:
        start = time.monotonic()
        with (
            self._watched(cluster),
            ClusterInjector(cluster, network, self._programs, self._seed, self._say) as injector,
        ):
            for fault in plan(self._seed, self._seconds, self._every):
                time.sleep(max(0.0, start + fault.at - time.monotonic()))
                self._seen[fault.kind] += 1
                injector.begin(fault)
            time.sleep(max(0.0, start + self._seconds - time.monotonic()))
        self._check_drains(injector.drains)

    def _check_drains(self, drains: Iterable[tuple[str, str]]) -> None:
        self._problems += [f"{name} was drained and {wrong}" for name, wrong in drains if wrong]

    @contextmanager
    def _watched(self, cluster: Cluster) -> Iterator[None]:
        """Look at the balances now and then, and print them."""
        stop = threading.Event()

        def watch() -> None:
            while not stop.wait(_PROGRESS_SECONDS):
                self._check(cluster.ledgers())
                self._check_programs()

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _check(self, ledgers: dict[str, LedgerSnapshot | None]) -> None:
        parts = []
        for name, ledger in ledgers.items():
            if ledger is None:
                parts.append(f"{name} does not answer")
                continue
            parts.append(f"{name} has accepted {ledger.accepted:,}, pending {ledger.pending:,}")
            if not ledger.balanced:
                self._problems.append(f"the ledger of {name} does not add up: {ledger}")
        self._say(f"[{'; '.join(parts)}]")

    def _check_programs(self) -> None:
        for program in self._programs.values():
            if program.ended:
                self._problems.append(f"{program.name} has ended by itself; see {program.log()}")

    def _finish(self, cluster: Cluster) -> dict[str, LedgerSnapshot | None]:
        deadline = time.monotonic() + _END_SECONDS
        for each in PRODUCERS:
            self._programs[each.name].begin_end()
        for each in PRODUCERS:
            self._end(each.name, deadline - time.monotonic())
        if not cluster.empty(deadline):
            self._problems.append(f"not everything was delivered {_END_SECONDS:.0f} s after the last fault")
        ledgers = cluster.ledgers()
        self._check(ledgers)
        for consumer in CONSUMERS:
            self._end(consumer.name, _EXIT_SECONDS)
        return ledgers

    def _end(self, name: str, timeout: float) -> None:
        program = self._programs[name]
        if code := program.end(max(0.0, timeout) + _EXIT_SECONDS):
            last = program.log().read_text(encoding="utf-8", errors="replace").splitlines()[-1:]
            self._problems.append(f"{name} has ended with code {code}: {' '.join(last)}")

    def _producer_ledgers(self) -> dict[str, LedgerSnapshot]:
        return {
            each.name: LedgerSnapshot(**facts["ledger"])
            for each in PRODUCERS
            for _, event, facts in records(self._programs[each.name].journals()[-1])
            if event == "settled"
        }
