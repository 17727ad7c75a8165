"""One chaos run from its start to its verdict."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from campaigns.chaos.cluster import Cluster
from campaigns.chaos.faults import plan
from campaigns.chaos.inject import ClusterInjector
from campaigns.chaos.journal import Journal
from campaigns.chaos.network import Network
from campaigns.chaos.scene import Scene
from helpers.control_faults import Fate
from helpers.history import Verdict

from tuplewire.session.ledger import LedgerSnapshot

_PROGRESS_SECONDS = 5.0


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
            scene = Scene(
                cluster, journal, journal_file, address=network.address, seed=self._seed, rate=self._rate
            )
            stack.callback(scene.abort)
            scene.begin()
            self._disturb(scene, cluster, network)
            self._say("everything has healed; waiting until all is delivered")
            workers = scene.finish()
            self._tell(workers)
            _check_drains(scene, cluster.stop())
            control: Counter[Fate] = Counter()
            for each in network.control.values():
                for (_, fate), number in each.counts.items():
                    control[fate] += number
        return Outcome(
            scene.verdict(), self._seen, control, workers, scene.producer_ledgers(), scene.problems
        )

    # --- the parts of it ---------------------------------------------------------------------------

    def _disturb(self, scene: Scene, cluster: Cluster, network: Network) -> None:
        start = time.monotonic()
        with (
            self._watched(scene, cluster),
            ClusterInjector(cluster, network, scene.programs, self._seed, self._say) as injector,
        ):
            for fault in plan(self._seed, self._seconds, self._every):
                time.sleep(max(0.0, start + fault.at - time.monotonic()))
                self._seen[fault.kind] += 1
                injector.begin(fault)
            time.sleep(max(0.0, start + self._seconds - time.monotonic()))
        _check_drains(scene, injector.drains)

    @contextmanager
    def _watched(self, scene: Scene, cluster: Cluster) -> Iterator[None]:
        """Look at the balances now and then, and print them."""
        stop = threading.Event()

        def watch() -> None:
            while not stop.wait(_PROGRESS_SECONDS):
                ledgers = cluster.ledgers()
                self._tell(ledgers)
                scene.check_ledgers(ledgers)
                scene.check_programs()

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _tell(self, ledgers: dict[str, LedgerSnapshot | None]) -> None:
        parts = [
            f"{name} does not answer"
            if ledger is None
            else f"{name} has accepted {ledger.accepted:,}, pending {ledger.pending:,}"
            for name, ledger in ledgers.items()
        ]
        self._say(f"[{'; '.join(parts)}]")


def _check_drains(scene: Scene, drains: Iterable[tuple[str, str]]) -> None:
    scene.problems += [f"{name} was drained and {wrong}" for name, wrong in drains if wrong]
