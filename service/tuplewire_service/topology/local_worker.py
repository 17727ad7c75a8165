"""A worker of a local cluster: executors, and a link where there are other workers."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tuplewire.topology.description import Topology
from tuplewire.topology.executor import Executor
from tuplewire.topology.idle import IdleWatch
from tuplewire.topology.routing import outbound_tasks
from tuplewire.topology.worker import ExecutorWorker
from tuplewire_service.messaging.base import IContext
from tuplewire_service.topology.context_link import ContextLink
from tuplewire_service.worker.assignment import AssignedWorker, Assignment

_HOST = "127.0.0.1"


class LocalWorker:
    """Some tasks of a topology. Source: Storm's `Worker`, as its `LocalContainer` runs it.

    context: None for a worker that is alone. moved: see IdleWatch. settings: further arguments of
    ExecutorWorker. dead: whether it was killed.
    """

    def __init__(
        self,
        topology: Topology,
        tasks: Collection[int],
        context: IContext | None,
        moved: threading.Condition,
        *,
        topology_id: str,
        **settings: Any,
    ) -> None:
        self.tasks = frozenset(tasks)
        self.dead = False
        self.link = None if context is None else ContextLink(context, topology_id)
        self._topology = topology
        self.executors = ExecutorWorker(
            topology, tasks, topology_id=topology_id, link=self.link, idle=IdleWatch(moved), **settings
        )

    @property
    def pending(self) -> int:
        """Messages that are on the way to other workers."""
        return 0 if self.link is None else self.link.connections.ledger.pending

    @property
    def begun(self) -> int:
        """Everything that has ever begun here: the same twice means that nothing has in between."""
        return self.executors.idle.begun

    def assign(self, assignment: Assignment) -> None:
        """Send to other workers, and take, by an assignment."""
        if self.link is not None and not self.dead:
            self.link.assign(assignment, outbound_tasks(self._topology, self.tasks))
            self.link.serve(self.tasks)

    def remove(self, tasks: range, timeout: float) -> None:
        """End an executor; see ExecutorWorker.remove."""
        self.executors.remove(tasks, timeout)
        self.tasks = self.tasks.difference(tasks)

    def make_room(self, tasks: range) -> None:
        """Note that an executor is about to come."""
        self.tasks = self.tasks.union(tasks)

    def forget(self, other: LocalWorker) -> None:
        """End what goes to a worker that was killed."""
        if self.link is not None and other.link is not None and not self.dead:
            self.link.connections.forget((_HOST, other.link.port))

    def kill(self, timeout: float) -> list[Executor[Any]]:
        """End it as if its process were killed; see ExecutorWorker.kill."""
        self.dead = True
        left = self.executors.kill(0.0)
        if self.link is not None:
            self.link.abort()
        return [executor for executor in left if not executor.join(timeout)]


def assignment_of(topology_id: str, version: int, workers: Sequence[LocalWorker]) -> Assignment:
    """Return who has which tasks; workers that are dead have none."""
    return Assignment(
        version,
        topology_id,
        tuple(
            AssignedWorker(str(number), f"{_HOST}:{worker.link.port}", tuple(sorted(worker.tasks)))
            for number, worker in enumerate(workers)
            if worker.link is not None and not worker.dead
        ),
    )


def rests(epochs: Mapping[LocalWorker, int]) -> bool:
    """Whether workers have nothing to do: no tuple in a queue, in an executor's hands or on the way.

    epochs: of IdleWatch, by worker; those that are dead do not count. The workers are looked at one after the
    other; that nothing has begun anywhere meanwhile says that what was seen of each still holds for all.
    """
    living = [(worker, epoch) for worker, epoch in epochs.items() if not worker.dead]
    before = [worker.begun for worker, _ in living]
    return (
        all(worker.executors.idle.empty and worker.executors.at_rest(epoch) for worker, epoch in living)
        and not any(worker.pending for worker, _ in living)
        and before == [worker.begun for worker, _ in living]
    )
