"""The workers, producers and consumers of a run, from the first message to the verdict."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from campaigns.chaos.layout import CONSUMERS, PRODUCERS, TASKS, WORKERS
from campaigns.cluster import Cluster
from campaigns.programs import Program
from helpers.restartable import THIS_HOST, Host

from tuplewire.session.ledger import LedgerSnapshot

END_SECONDS = 60.0
"""The limit after the last fault until every message has arrived."""
_EXIT_SECONDS = 10.0
_POLL_SECONDS = 0.05


class Scene:
    """All processes of a run.

    Args:
        directory: For journals and logs.
        address: Returns the address at which one process reaches a worker.
        rate: The messages per second of each producer.
        hosts: The hosts of programs that do not run on this one.
    """

    def __init__(
        self,
        cluster: Cluster,
        directory: Path,
        *,
        address: Callable[[str, str], str],
        seed: int,
        rate: float,
        hosts: Mapping[str, Host] | None = None,
    ) -> None:
        self.programs: dict[str, Program] = {}
        self.faults: list[str] = []
        """Everything that went wrong, except broken promises about messages."""
        self._cluster = cluster
        self._directory = directory
        self._address = address
        self._seed = seed
        self._rate = rate
        self._hosts = hosts or {}

    def begin(self) -> None:
        """Assign the tasks, wait until the workers are ready, and start the programs."""
        self._cluster.route = self._address
        self._cluster.assign({task: WORKERS[index % len(WORKERS)] for index, task in enumerate(TASKS)})
        self._cluster.wait_ready()
        for consumer in CONSUMERS:
            workers = {worker: self._address(consumer.name, worker) for worker in WORKERS}
            self._start("consumer", consumer.name, {"tasks": consumer.tasks, "workers": workers})
        for producer in PRODUCERS:
            self._start(
                "producer",
                producer.name,
                {
                    "address": self._address(producer.name, producer.worker),
                    "worker": producer.worker,
                    "source": producer.source,
                    "mode": producer.mode,
                    "tasks": TASKS,
                    "seed": self._seed,
                    "rate": self._rate,
                },
            )

    def _start(self, role: str, name: str, config: dict[str, object]) -> None:
        entered = self._hosts.get(name, THIS_HOST).entered
        config = {"role": role, **config}
        self.programs[name] = Program("campaigns.chaos.ends", name, config, self._directory, entered)

    def abort(self) -> None:
        """End every program, whatever its state."""
        for program in self.programs.values():
            program.end(0.0 if not program.ended else _EXIT_SECONDS)

    def check(self) -> dict[str, LedgerSnapshot | None]:
        """Note programs that have exited and balances that do not add up; return the workers' balances."""
        for program in self.programs.values():
            if program.ended:
                self.faults.append(f"{program.name} has exited during the run; see {program.log()}")
        return self._checked_balances()

    def _checked_balances(self) -> dict[str, LedgerSnapshot | None]:
        balances = self._cluster.balances()
        for name, ledger in balances.items():
            if ledger is not None and not ledger.balanced:
                self.faults.append(f"the ledger of {name} does not add up: {ledger}")
        return balances

    def finish(self) -> dict[str, LedgerSnapshot | None]:
        """End the producers, wait until every message has arrived, end the rest; return the balances."""
        deadline = time.monotonic() + END_SECONDS
        for each in PRODUCERS:
            self.programs[each.name].begin_end()
        for each in PRODUCERS:
            self._end(each.name, deadline - time.monotonic())
        while not (empty := self._cluster.is_empty()) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        if not empty:
            self.faults.append(f"messages are pending {END_SECONDS:.0f} s after the last fault")
        balances = self._checked_balances()
        for consumer in CONSUMERS:
            self._end(consumer.name, _EXIT_SECONDS)
        self._cluster.end_all()
        self.faults += self._cluster.faults
        return balances

    def _end(self, name: str, timeout: float) -> None:
        program = self.programs[name]
        if code := program.end(max(0.0, timeout) + _EXIT_SECONDS):
            last = program.log().read_text(encoding="utf-8", errors="replace").splitlines()[-1:]
            self.faults.append(f"{name} has exited with code {code}: {' '.join(last)}")
