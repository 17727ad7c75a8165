"""Chaos in a topology: random faults in workers, their programs, and the ways between them.

Three workers, four producers (two in the mode queued, two processed) and three consumers run as processes.
Connections are cut, delayed and silenced, processes are stopped, killed and drained, tasks move, control
messages are lost and doubled. At the end all faults end, and every message is accounted for.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack

from campaigns.campaign import Action
from campaigns.chaos.chaos import Chaos
from campaigns.chaos.faults import Kind, Targets
from campaigns.chaos.layout import CONSUMERS, PRODUCERS, TASKS, WORKERS, ways
from campaigns.chaos.network import Network
from campaigns.chaos.scene import Scene
from campaigns.cluster import Cluster
from helpers.control_faults import Fate

from tuplewire.session.ledger import LedgerSnapshot

_POLL_SECONDS = 0.05


class WorkerChaos(Chaos):
    """A run with workers. transport: between the workers."""

    targets = Targets(
        ways(), [each.name for each in PRODUCERS], [each.name for each in CONSUMERS], WORKERS, TASKS
    )
    modes: Mapping[str, str] = {each.name: each.mode for each in PRODUCERS}
    weights: Mapping[Kind, int] = {
        Kind.CUT: 4,
        Kind.BLACK_HOLE: 3,
        Kind.DELAY: 2,
        Kind.THROTTLE: 2,
        Kind.HALF_OPEN: 3,
        Kind.CONTROL: 3,
        Kind.STOP_WORKER: 2,
        Kind.STOP_PRODUCER: 1,
        Kind.STOP_CONSUMER: 2,
        Kind.KILL_CONSUMER: 2,
        Kind.KILL_WORKER: 2,
        Kind.RESTART_WORKER: 2,
        Kind.MOVE: 4,
    }

    def open(self, stack: ExitStack) -> None:
        """See Campaign."""
        self._chance = random.Random(self.seed)
        self.control: Counter[Fate] = Counter()
        self.workers: dict[str, LedgerSnapshot | None] = {}
        self._cluster = Cluster(self.directory, self.journal, [f"--transport={self.transport}"])
        stack.callback(self._cluster.discard)
        self._cluster.add(*WORKERS)
        self._network = stack.enter_context(Network(self._cluster.endpoints, self.directory, self.seed))
        self._scene = Scene(
            self._cluster, self.directory, address=self._network.address, seed=self.seed, rate=self.rate
        )
        stack.callback(self._scene.abort)
        self._scene.begin()

    def act(self, action: Action) -> None:
        """See Campaign."""
        cluster, target = self._cluster, action.target
        match action.kind:
            case Kind.CONTROL:
                control = self._network.control[target.removeprefix("to ")]
                control.begin()
                self.stop.wait(action.seconds)
                control.heal()
            case Kind.STOP_WORKER:
                self.suspend(cluster.workers[target], action.seconds)
            case Kind.STOP_PRODUCER | Kind.STOP_CONSUMER:
                self.suspend(self._scene.programs[target], action.seconds)
            case Kind.KILL_CONSUMER:
                self._scene.programs[target].kill()
                self.stop.wait(action.seconds)
                self._scene.programs[target].start()
            case Kind.KILL_WORKER:
                cluster.end(target, killed=True)
                self.stop.wait(action.seconds)
                cluster.workers[target].start()
            case Kind.RESTART_WORKER:
                cluster.restart(target)
            case Kind.MOVE:
                for worker in str(action.value).removeprefix("to ").split(" and to "):
                    order = self._chance.sample(WORKERS, len(WORKERS))
                    cluster.move(int(target.removeprefix("task ")), worker, order)
                while not cluster.settled() and not self.stop.wait(_POLL_SECONDS):
                    pass
            case _:
                self.disturb(self._network.proxies[target], action)

    def look(self) -> str:
        """Check programs and balances."""
        balances = self._scene.check()
        self._take_faults()
        return f"[{'; '.join(_progress(balances))}]"

    def finish(self) -> None:
        """See Campaign."""
        self.workers = self._scene.finish()
        self._take_faults()
        for each in self._network.control.values():
            for (_, fate), number in each.counts.items():
                self.control[fate] += number
        self.judge(self._scene.programs)

    def _take_faults(self) -> None:
        self.faults += self._scene.faults
        self._scene.faults.clear()

    def report(self) -> Iterator[str]:
        """See Campaign."""
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
