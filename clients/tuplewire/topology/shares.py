"""Which executors run in which process. Source: Storm's `EvenScheduler`."""

from __future__ import annotations

from tuplewire.topology.description import Topology


def shares_of(topology: Topology, workers: int) -> list[list[int]]:
    """Deal the executors out to workers in turn, of which there are no more than executors."""
    executors = [tasks for name in topology.components for tasks in topology.executors_of(name)]
    shares: list[list[int]] = [[] for _ in range(min(workers, len(executors)))]
    for number, tasks in enumerate(executors):
        shares[number % len(shares)] += tasks
    return shares
