"""Which worker each task talks to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tuplewire.client import Client
from tuplewire.errors import ConfigError
from tuplewire.processes.worker_processes import Endpoint
from tuplewire.spark.shipped import Shipped


def spread(*components: Iterable[int], n_workers: int) -> dict[int, list[int]]:
    """Return the tasks of each worker, by its index, with the tasks of each component dealt in turn."""
    if n_workers < 1:
        raise ConfigError(f"a pipeline needs at least one worker, not {n_workers}")
    placed: dict[int, list[int]] = {index: [] for index in range(n_workers)}
    for component in components:
        for position, task in enumerate(component):
            placed[position % n_workers].append(task)
    return placed


@dataclass(frozen=True, slots=True)
class Attachment(Shipped):
    """How the tasks of one run reach their workers; it travels to them with the code.

    run: names the run, so that two on the same workers do not take each other for a restart.
    addresses: of the workers. worker_of: the index of the worker that holds each receiving task.
    """

    topology: str
    run: str
    addresses: Sequence[str]
    worker_of: Mapping[int, int]

    @classmethod
    def of(
        cls,
        topology: str,
        run: str,
        workers: Sequence[Endpoint],
        placed: Mapping[int, Iterable[int]],
    ) -> Attachment:
        """Build from the running workers and the tasks of each, by index."""
        worker_of = {task: index for index, tasks in placed.items() for task in tasks}
        return cls(topology, run, tuple(worker.unix_address for worker in workers), worker_of)

    def crosses(self, task: int, to: int) -> bool:
        """Whether what a task sends to another goes from worker to worker."""
        return self._index(task) != self._index(to)

    def _index(self, task: int) -> int:
        # A task that only sends is free to use any worker; they take turns.
        return self.worker_of.get(task, task % len(self.addresses))

    def client(self, task: int) -> Client:
        """Return a client for a task, within the PySpark task that runs it."""
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is None:
            raise ConfigError("a task's client is opened inside a PySpark task")
        return Client(
            self.addresses[self._index(task)],
            topology=self.topology,
            client_id=f"{self.run}-{task}",
            # Attempt *numbers* repeat when Spark runs a stage again; these ids do not.
            incarnation=context.taskAttemptId() + 1,
            source=task,
        )
