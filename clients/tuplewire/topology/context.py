"""What a task may know about itself and its topology. Source: Storm's `TopologyContext`."""

from __future__ import annotations

from dataclasses import dataclass

from tuplewire.topology.description import Component, Topology


@dataclass(frozen=True, slots=True)
class TopologyContext:
    """One task's place in a topology; `topology` answers what else there is to ask.

    topology_id: the name under which the topology runs. worker_port: the one that its worker listens on; 0
    where it has none. worker_tasks: those of its worker when the task was opened.
    """

    topology_id: str
    topology: Topology
    task: int
    worker_port: int = 0
    worker_tasks: frozenset[int] = frozenset()

    @property
    def component(self) -> Component:
        """The component that the task is one of."""
        return self.topology.component_of(self.task)

    @property
    def component_tasks(self) -> range:
        """All tasks of that component."""
        return self.topology.tasks_of(self.component.id)

    @property
    def task_index(self) -> int:
        """Which of them this is, from 0."""
        return self.component_tasks.index(self.task)
