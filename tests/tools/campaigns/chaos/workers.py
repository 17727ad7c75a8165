"""Chaos in a topology: random faults in workers, their programs, and the connections between them.

Three workers, four producers (two in the mode queued, two processed) and three consumers run as processes.
Connections are cut, delayed and silenced, processes are stopped, killed and drained, tasks move, control
messages are lost and duplicated. At the end all faults stop, and every message is accounted for.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from itertools import permutations

from campaigns.campaign import Action
from campaigns.chaos.chaos import Chaos, proxy
from campaigns.chaos.faults import OF_WAYS, Kind, Targets
from campaigns.chaos.layout import CONSUMERS, PRODUCERS, TASKS, WORKERS, way, ways
from campaigns.cluster import Cluster
from helpers.control_faults import ControlFaults, Fate
from helpers.restartable import THIS_HOST, Host

from tuplewire.session.ledger import LedgerSnapshot

END_SECONDS = 60.0
"""The time limit after the last fault until every message has arrived."""
_POLL_SECONDS = 0.05


class WorkerChaos(Chaos):
    """A run with workers. transport: between the workers."""

    targets = Targets(
        ways(), [each.name for each in PRODUCERS], [each.name for each in CONSUMERS], WORKERS, TASKS
    )
    modes: Mapping[str, str] = {each.name: each.config["mode"] for each in PRODUCERS}
    weights: Mapping[Kind, int] = {
        **OF_WAYS,
        Kind.CONTROL: 3,
        Kind.STOP_WORKER: 2,
        Kind.STOP_PRODUCER: 1,
        Kind.STOP_CONSUMER: 2,
        Kind.KILL_CONSUMER: 2,
        Kind.KILL_WORKER: 2,
        Kind.RESTART_WORKER: 2,
        Kind.MOVE: 4,
    }
    hosts: Mapping[str, Host] = {}
    """The hosts of processes that run on another host."""
    _control: Mapping[str, ControlFaults] = {}

    def connect(self, stack: ExitStack) -> Callable[[str, str], str]:
        """Open the connections; return a function for the address at which one process reaches a worker."""
        endpoints = self.cluster.endpoints
        self._control = control = {
            worker: stack.enter_context(ControlFaults(endpoints[worker].address, seed=self.seed + index))
            for index, worker in enumerate(WORKERS)
        }
        self.proxies = proxies = {
            way(near, far): proxy(stack, endpoints[far].peer_address or control[far].address)
            for near, far in permutations(WORKERS, 2)
        }
        for each in (*PRODUCERS, *CONSUMERS):
            for worker in each.workers if each.proxied else ():
                unix = f"unix://{self.directory}/{each.name}-{worker}.sock"
                proxies[way(each.name, worker)] = (
                    proxy(stack, control[worker].address)
                    if each.control
                    else proxy(stack, endpoints[worker].unix_address, unix)
                )

        def address(near: str, worker: str) -> str:
            found = proxies.get(way(near, worker))
            return endpoints[worker].unix_address if found is None else found.address

        return address

    def open(self, stack: ExitStack) -> None:
        self._chance = random.Random(self.seed)
        self.control: Counter[Fate] = Counter()
        self.workers: dict[str, LedgerSnapshot | None] = {}
        flags = [f"--transport={self.transport}"]
        self.cluster = Cluster(self.directory, self.journal, flags, hosts=self.hosts)
        stack.callback(self.cluster.discard)
        self.cluster.add(*WORKERS)
        address = self.cluster.route = self.connect(stack)
        self.cluster.assign({task: WORKERS[index % len(WORKERS)] for index, task in enumerate(TASKS)})
        self.cluster.wait_ready()
        for each in (*CONSUMERS, *PRODUCERS):
            reached = {worker: address(each.name, worker) for worker in each.workers}
            host = self.hosts.get(each.name, THIS_HOST)
            self.launch(stack, each.name, {**each.config, "workers": reached}, host)

    def act(self, action: Action) -> None:
        cluster, target = self.cluster, action.target
        match action.kind:
            case Kind.CONTROL:
                control = self._control[target.removeprefix("to ")]
                control.begin()
                self.stop.wait(action.seconds)
                control.heal()
            case Kind.STOP_WORKER:
                self.suspend(cluster.workers[target], action.seconds)
            case Kind.KILL_CONSUMER:
                self.programs[target].kill()
                self.stop.wait(action.seconds)
                self.programs[target].start()
            case Kind.KILL_WORKER:
                cluster.end(target, killed=True)
                self.stop.wait(action.seconds)
                cluster.workers[target].start()
            case Kind.RESTART_WORKER:
                cluster.end(target)
                cluster.workers[target].start()
            case Kind.MOVE:
                for worker in str(action.value).removeprefix("to ").split(" and to "):
                    order = self._chance.sample(WORKERS, len(WORKERS))
                    cluster.move(int(target.removeprefix("task ")), worker, order)
                while not cluster.settled() and not self.stop.wait(_POLL_SECONDS):
                    pass
            case _:
                super().act(action)

    def look(self) -> str:
        """Check programs and ledgers."""
        super().look()
        return f"[{'; '.join(_progress(self._checked_balances()))}]"

    def _checked_balances(self) -> dict[str, LedgerSnapshot | None]:
        balances = self.cluster.balances()
        for name, ledger in balances.items():
            if ledger is not None and not ledger.balanced:
                self.faults.append(f"the ledger of {name} does not add up: {ledger}")
        return balances

    def finish(self) -> None:
        """Stop the producers, wait until every message has arrived, and stop the rest."""
        deadline = time.monotonic() + END_SECONDS
        self.end([each.name for each in PRODUCERS], deadline)
        while not (empty := self.cluster.is_empty()) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        if not empty:
            self.faults.append(f"messages are pending {END_SECONDS:.0f} s after the last fault")
        self.workers = self._checked_balances()
        self.end([each.name for each in CONSUMERS], time.monotonic())
        self.cluster.end_all()
        self.faults += self.cluster.faults
        for control in self._control.values():
            for (_, fate), number in control.counts.items():
                self.control[fate] += number
        self.judge()

    def report(self) -> Iterator[str]:
        yield f"control messages: {self.control[Fate.LOST]:,} lost, {self.control[Fate.DOUBLED]:,} doubled"
        for name, ledger in self.workers.items():
            yield f"ledger of {name}: {ledger or 'unknown, it does not answer'}"
        yield from super().report()


def _progress(balances: Mapping[str, LedgerSnapshot | None]) -> Iterator[str]:
    for name, ledger in balances.items():
        if ledger is None:
            yield f"{name} does not answer"
        else:
            yield f"{name} has accepted {ledger.accepted:,}, pending {ledger.pending:,}"
