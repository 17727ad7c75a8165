"""Rolling restarts: three workers under full load, each restarted in turn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from campaigns.campaign import Action, Campaign
from campaigns.cluster import Cluster
from campaigns.steady import Steady
from helpers.streams import Load

from tuplewire_service.testing import eventually

WORKERS = ("worker-0", "worker-1", "worker-2")
TASKS = tuple(range(1, 1 + 2 * len(WORKERS)))
"""Two tasks at each worker."""
BATCH = 200
"""Messages per task in one send of a producer."""
PROGRESS = 10_000
"""The messages of every stream between two restarts."""
_SOURCES = {name: 100 + index for index, name in enumerate(WORKERS)}
"""The source task that sends through each worker; it receives no messages, and is not in the assignment."""
_WAIT_SECONDS = 120.0


class RollingRestarts(Campaign):
    """Restarts of the workers in turn, while producers at each worker send to every task."""

    def __init__(
        self, restarts: int, drain_seconds: float, *, directory: Path, progress: int = PROGRESS
    ) -> None:
        super().__init__(0, 0.0, directory=directory)
        self._restarts = restarts
        self._drain_seconds = drain_seconds
        self._progress = progress
        self.accepted = 0
        """The number of messages that all workers have accepted."""

    def plan(self) -> Iterator[Action]:
        for number in range(1, self._restarts + 1):
            yield Action(0.0, "restart", WORKERS[number % len(WORKERS)], value=number)

    def open(self, stack: ExitStack) -> None:
        self._cluster = Cluster(self.directory, self.journal, drain_seconds=self._drain_seconds)
        stack.callback(self._cluster.discard)
        self._cluster.add(*WORKERS)
        owners = {task: WORKERS[(task - 1) // 2] for task in TASKS}
        self._cluster.assign(owners)
        self._cluster.wait_ready()
        addresses = {name: each.address for name, each in self._cluster.endpoints.items()}
        routes = [(addresses[name], source) for name, source in _SOURCES.items()]
        places = [
            (addresses[name], [task for task, owner in owners.items() if owner == name]) for name in WORKERS
        ]
        self.steady = Steady(stack, routes, places, Load(TASKS, BATCH))

    def act(self, action: Action) -> None:
        """Restart a worker after every stream has made progress."""
        self._await_progress()
        self.say(f"  {self._cluster.restart(action.target)}")

    def _await_progress(self) -> None:
        """Wait until every stream, from each source to each task, has made progress."""
        streams = [(source, task) for source in _SOURCES.values() for task in TASKS]
        before = self.steady.received()

        def moved() -> bool:
            now = self.steady.received()
            return all(now.get(each, 0) >= before.get(each, 0) + self._progress for each in streams)

        eventually(moved, _WAIT_SECONDS, f"{self._progress} more messages of every stream")

    def finish(self) -> None:
        self._await_progress()
        self.faults += self.steady.finish()
        self._cluster.end_all()
        self.faults += self._cluster.faults
        self.accepted = sum(ledger.accepted for _, _, ledger in self._cluster.ledgers)
        if self.accepted != self.expected_accepted:
            self.faults.append(
                f"the workers have accepted {self.accepted} messages, not {self.expected_accepted}"
            )

    @property
    def expected_accepted(self) -> int:
        """The messages that all workers accept: one if a task is at its sender's worker, otherwise two."""
        sources = {task: _SOURCES[owner] for task, owner in self._cluster.owners.items()}
        return sum(
            count * (1 if sources[task] == source else 2)
            for (source, task), count in self.steady.produced.sent.items()
        )

    def report(self) -> Iterator[str]:
        yield f"{self.done['restart']} restarts, {sum(self.steady.produced.sent.values()):,} messages sent"
        yield f"accepted by all workers: {self.accepted:,}, expected {self.expected_accepted:,}"
