"""Converts a topology and its local executors to a part of the worker's status."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from tuplewire.wire import control_pb2 as pb
from tuplewire_topology.authoring.description import Topology
from tuplewire_topology.running.executor import Executor
from tuplewire_topology.running.statistics import Counts


def component_statuses(
    topology: Topology, executors: Iterable[Executor[Any]], first_task: int = 0
) -> list[pb.ComponentStatus]:
    """Return all components of a topology with their executors in this process.

    `first_task` is the offset of the topology's task ids in the worker.
    """
    by_component: defaultdict[str, list[tuple[Executor[Any], Counts]]] = defaultdict(list)
    for each in executors:
        by_component[each.component.id].append((each, each.at_work()))
    statuses = []
    for name, component in topology.components.items():
        here, tasks = by_component[name], topology.tasks_of(name)
        status = pb.ComponentStatus(
            component=name,
            kind=component.kind,
            first_task=first_task + tasks[0],
            tasks=len(tasks),
            inputs=[
                pb.InputStatus(
                    component=source.component,
                    stream=source.stream,
                    grouping=source.grouping,
                    executed=sum(
                        counts.executed_by.get((source.component, source.stream), 0) for _, counts in here
                    ),
                )
                for source in component.inputs
            ],
            executors=[_executor(*each, first_task) for each in here],
        )
        statuses.append(status)
    return statuses


def _executor(executor: Executor[Any], counts: Counts, first_task: int) -> pb.ExecutorStatus:
    queue = executor.queue.statistics()
    return pb.ExecutorStatus(
        first_task=first_task + executor.tasks[0],
        tasks=len(executor.tasks),
        emitted=counts.emitted,
        executed=counts.executed,
        failed=counts.failed,
        errors=counts.errors,
        busy_seconds=counts.execute.seconds,
        sending_seconds=counts.sending_seconds,
        queued_tuples=queue.population,
        queue_capacity=queue.capacity,
        pending=executor.pending,
    )
