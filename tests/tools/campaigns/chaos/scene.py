"""The workers, producers and consumers of a run, from the first message to what has become of all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from campaigns.chaos.cluster import THIS_HOST, Cluster, Host
from campaigns.chaos.journal import Journal, history_of, records
from campaigns.chaos.layout import CONSUMERS, PRODUCERS, TASKS, TOPOLOGY, WORKERS
from campaigns.chaos.programs import Program
from helpers.history import Verdict

from tuplewire.connection.control_client import ControlClient
from tuplewire.session.ledger import LedgerSnapshot

END_SECONDS = 60.0
"""How long it may take, after everything has healed, until all is delivered."""
_READY_SECONDS = 30.0
_EXIT_SECONDS = 10.0


class Scene:
    """Everybody who takes part in a run.

    run: the file of the run's own journal; those of the programs, and their logs, are beside it. address:
    where one process reaches a worker. rate: of each producer, in messages per second. hosts: of the programs
    that are not on this one.
    """

    def __init__(
        self,
        cluster: Cluster,
        journal: Journal,
        run: Path,
        *,
        address: Callable[[str, str], str],
        seed: int,
        rate: float,
        hosts: Mapping[str, Host] | None = None,
    ) -> None:
        self.programs: dict[str, Program] = {}
        self.problems: list[str] = []
        """What went wrong apart from the messages."""
        self._cluster = cluster
        self._journal = journal
        self._run = run
        self._address = address
        self._seed = seed
        self._rate = rate
        self._hosts = hosts or {}

    def begin(self) -> None:
        """Tell the workers of each other, wait until they are ready, and start the programs."""
        address, cluster = self._address, self._cluster
        cluster.publish(address, list(WORKERS))
        for slot in cluster.slots.values():
            with ControlClient(slot.endpoint.unix_address) as control:
                control.wait_ready(_READY_SECONDS)
        for consumer in CONSUMERS:
            workers = {worker: address(consumer.name, worker) for worker in WORKERS}
            self._start(
                "campaigns.chaos.consumer", consumer.name, {"tasks": consumer.tasks, "workers": workers}
            )
        for producer in PRODUCERS:
            self._journal.write("source", source=producer.source, mode=producer.mode, worker=producer.worker)
            self._start(
                "campaigns.chaos.producer",
                producer.name,
                {
                    "address": address(producer.name, producer.worker),
                    "source": producer.source,
                    "mode": producer.mode,
                    "tasks": TASKS,
                    "seed": self._seed + producer.source,
                    "rate": self._rate,
                    "flush_seconds": END_SECONDS,
                },
            )

    def _start(self, module: str, name: str, config: dict[str, object]) -> None:
        entered = self._hosts.get(name, THIS_HOST).entered
        config = {"topology": TOPOLOGY, **config}
        self.programs[name] = Program(module, name, config, self._run.parent, entered)

    def abort(self) -> None:
        """End every program, whatever it is at."""
        for program in self.programs.values():
            program.end(0.0 if not program.ended else _EXIT_SECONDS)

    def check_programs(self) -> None:
        """Note which programs have ended by themselves."""
        for program in self.programs.values():
            if program.ended:
                self.problems.append(f"{program.name} has ended by itself; see {program.log()}")

    def check_ledgers(self, ledgers: Mapping[str, LedgerSnapshot | None]) -> None:
        """Note which balances do not add up."""
        for name, ledger in ledgers.items():
            if ledger is not None and not ledger.balanced:
                self.problems.append(f"the ledger of {name} does not add up: {ledger}")

    def finish(self) -> dict[str, LedgerSnapshot | None]:
        """End the producers, wait until all is delivered, end the consumers; return the workers' balances."""
        deadline = time.monotonic() + END_SECONDS
        for each in PRODUCERS:
            self.programs[each.name].begin_end()
        for each in PRODUCERS:
            self._end(each.name, deadline - time.monotonic())
        if not self._cluster.empty(deadline):
            self.problems.append(f"not everything was delivered {END_SECONDS:.0f} s after the last fault")
        ledgers = self._cluster.ledgers()
        self.check_ledgers(ledgers)
        for consumer in CONSUMERS:
            self._end(consumer.name, _EXIT_SECONDS)
        return ledgers

    def _end(self, name: str, timeout: float) -> None:
        program = self.programs[name]
        if code := program.end(max(0.0, timeout) + _EXIT_SECONDS):
            last = program.log().read_text(encoding="utf-8", errors="replace").splitlines()[-1:]
            self.problems.append(f"{name} has ended with code {code}: {' '.join(last)}")

    def verdict(self) -> Verdict:
        """Judge what has become of every message."""
        journals = (path for each in self.programs.values() for path in each.journals())
        return history_of([self._run, *journals]).verdict()

    def producer_ledgers(self) -> dict[str, LedgerSnapshot]:
        """Return what each producer's client has said at its end."""
        return {
            each.name: LedgerSnapshot(**facts["ledger"])
            for each in PRODUCERS
            for _, event, facts in records(self.programs[each.name].journals()[-1])
            if event == "settled"
        }
