"""Hooks: the user's code around the spouts and bolts of a worker, and resources that tasks share.

Used by topologies, through TopologyBuilder.add_worker_hook() and TopologyContext.add_task_hook().
Source: Storm's `IWorkerHook`, `WorkerUserContext`, `ITaskHook`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from tuplewire.errors import TopologyError
from tuplewire.text.events import event_logger
from tuplewire_topology.authoring.description import Topology
from tuplewire_topology.authoring.tuples import Tuple

logger = event_logger(__name__)


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """The worker of a hook.

    Attributes:
        topology_id: The name under which the topology runs.
        topology: The topology.
        tasks: The tasks of the worker at its start.
        resources: Values by name, for the tasks of the worker; see TopologyContext.resource().
    """

    topology_id: str
    topology: Topology
    tasks: frozenset[int]
    resources: dict[str, Any] = field(default_factory=dict)


class WorkerHook:
    """Code for the start and the end of each worker. Each worker has a copy of the hook.

    Source: Storm's `BaseWorkerHook`.
    """

    def start(self, conf: Mapping[str, Any], context: WorkerContext) -> None:
        """Start, before any task is opened; an error ends the worker. Put resources into the context here."""

    def shutdown(self) -> None:
        """End, after all tasks are closed. Not called if the process is killed."""


class TaskHook:
    """Code that observes one task, in its executor's thread. It gets tuples in columns, as executors do.

    An error ends the executor. Source: Storm's `BaseTaskHook`.
    """

    def emitted(self, tuples: Sequence[Tuple]) -> None:
        """Observe tuples that the task has emitted on one stream, before they are sent."""

    def executed(self, tuples: Sequence[Tuple], seconds: float) -> None:
        """Observe tuples that a bolt has executed, and the time that this took."""

    def acked(self, message: Any) -> None:
        """Observe a tuple that a bolt has acked, or the message id of a spout's tuple that is processed."""

    def failed(self, message: Any) -> None:
        """Observe a tuple that a bolt has failed, or the message id of a spout's tuple that has failed."""

    def cleanup(self) -> None:
        """End, after the spout or bolt is closed."""


class WorkerHooks:
    """The hooks of one worker, in order. Not thread-safe."""

    def __init__(self, conf: Mapping[str, Any], context: WorkerContext) -> None:
        self._conf = conf
        self._context = context
        self._started: list[WorkerHook] = []

    @property
    def resources(self) -> Mapping[str, Any]:
        """What they have put into the context."""
        return self._context.resources

    def start(self) -> None:
        """Start all. Raises TopologyError if one raises an error."""
        for hook in deepcopy(self._context.topology.worker_hooks):
            try:
                hook.start(self._conf, self._context)
            except Exception as error:
                raise TopologyError(f"worker hook {type(hook).__name__}: {error}") from error
            self._started.append(hook)

    def shutdown(self) -> None:
        """End those that have started, the last one first; an error is logged."""
        while self._started:
            try:
                self._started.pop().shutdown()
            except Exception:
                logger.exception("worker_hook.failed")
