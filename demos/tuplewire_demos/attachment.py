"""The worker of each task of a pipeline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tuplewire.client import Client
from tuplewire.errors import ConfigError
from tuplewire.processes.worker_processes import Endpoint
from tuplewire.spark.shipped import Shipped


def spread(*components: Iterable[int], n_workers: int) -> dict[int, list[int]]:
    """Return the tasks of each worker, by index. The tasks of each component are assigned in turn."""
    if n_workers < 1:
        raise ConfigError(f"a pipeline needs at least one worker, not {n_workers}")
    placed: dict[int, list[int]] = {index: [] for index in range(n_workers)}
    for component in components:
        for position, task in enumerate(component):
            placed[position % n_workers].append(task)
    return placed


@dataclass(frozen=True, slots=True)
class Attachment(Shipped):
    """The workers of one run's tasks. Spark sends it to the tasks with the code.

    run: names the run, so that workers do not take two runs for restarts of each other.
    addresses: of the workers. worker_of: the index of the worker that owns each receiving task.
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
        """Build an attachment from the running workers and the tasks of each, by index."""
        worker_of = {task: index for index, tasks in placed.items() for task in tasks}
        return cls(topology, run, tuple(worker.unix_address for worker in workers), worker_of)

    def crosses(self, task: int, to: int) -> bool:
        """Return True if messages from one task to another are forwarded between workers."""
        return self._index(task) != self._index(to)

    def _index(self, task: int) -> int:
        # A task that only sends may use any worker, so these tasks are spread over all workers.
        return self.worker_of.get(task, task % len(self.addresses))

    def client(self, task: int) -> Client:
        """Return a client for a task. Raises ConfigError outside a PySpark task."""
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
