"""Executors without other workers, and the executors of bolts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tuplewire.values.group import TaskGroup
from tuplewire_topology import Topology
from tuplewire_topology.acking.acker import Acker
from tuplewire_topology.authoring.tuples import AddressedTuples
from tuplewire_topology.running.component_executors import BoltExecutor
from tuplewire_topology.running.executor_worker import ExecutorWorker
from tuplewire_topology.running.link import Failed, Link, Receive


class NoLink(Link):
    """A link without a client, for executors that have all tasks of their topology."""

    def __init__(self) -> None:
        self.worker = None

    def open(self, tasks: Sequence[range], receive: Receive, failed: Failed) -> None:
        """Receive nothing."""

    def leave(self, tasks: range) -> None:
        """Do nothing."""

    def send(self, groups: Sequence[TaskGroup]) -> None:
        """Fail: there is no other worker."""
        raise AssertionError(f"there are messages for task {groups[0].task}")

    @property
    def pending(self) -> int:
        """No messages."""
        return 0

    def lost(self) -> int:
        """Return 0."""
        return 0

    def abort(self) -> None:
        """Do nothing."""

    def close(self, timeout: float) -> None:
        """Do nothing."""


def alone(topology: Topology, *, conf: Mapping[str, Any] | None = None, **settings: Any) -> ExecutorWorker:
    """Return the executors of all tasks of a topology, not started yet. The settings are ExecutorWorker's."""

    def tell(column: AddressedTuples) -> None:
        worker.transfer.send_outcomes(column)

    worker = ExecutorWorker(topology, conf=conf, link=NoLink(), acker=Acker(tell), **settings)
    return worker


def bolts_of(worker: ExecutorWorker) -> list[BoltExecutor]:
    """Return the executors of bolts."""
    return [each for each in worker.executors if isinstance(each, BoltExecutor)]
