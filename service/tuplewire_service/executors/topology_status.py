"""The topology that a worker runs, as a part of its status."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from tuplewire.topology.description import Topology
from tuplewire.topology.running.statistics import ExecutorStatistics
from tuplewire.wire import control_pb2 as pb


def add_topology(
    status: pb.GetStatusResponse, topology: Topology, executors: Iterable[ExecutorStatistics]
) -> None:
    """Add the topology that a worker runs to its status, with its executors there."""
    by_component: defaultdict[str, list[ExecutorStatistics]] = defaultdict(list)
    for each in executors:
        by_component[each.component].append(each)
    for name, component in topology.components.items():
        here, tasks = by_component[name], topology.tasks_of(name)
        status.components.add(
            component=name,
            kind=component.kind,
            first_task=tasks[0],
            tasks=len(tasks),
            inputs=[
                pb.InputStatus(
                    component=source.component,
                    stream=source.stream,
                    grouping=source.grouping,
                    executed=sum(
                        each.at_work.executed_by.get((source.component, source.stream), 0) for each in here
                    ),
                )
                for source in component.inputs
            ],
            executors=map(_executor, here),
        )


def _executor(executor: ExecutorStatistics) -> pb.ExecutorStatus:
    return pb.ExecutorStatus(
        first_task=executor.tasks[0],
        tasks=len(executor.tasks),
        emitted=executor.counts.emitted,
        executed=sum(executor.at_work.executed_by.values()),
        failed=executor.counts.failed,
        errors=executor.counts.errors,
        busy_seconds=executor.at_work.busy_seconds,
        sending_seconds=executor.at_work.sending_seconds,
        queued_tuples=executor.queue.population,
        queue_capacity=executor.queue.capacity,
        pending=executor.pending,
    )
