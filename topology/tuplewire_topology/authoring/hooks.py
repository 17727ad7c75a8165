"""Hooks of workers and tasks, and their resources. Source: `IWorkerHook`, `ITaskHook`, `WorkerUserContext`.

Used through TopologyBuilder.add_worker_hook() and TopologyContext.add_task_hook(). Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
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
    """The worker that runs a hook. `topology_id` is the name under which the topology runs.

    `tasks` are the worker's tasks when it starts. `resources` are for them: see TopologyContext.resource().
    """

    topology_id: str
    topology: Topology
    tasks: frozenset[int]
    resources: dict[str, Any] = field(default_factory=dict)


class WorkerHook:
    """Runs when a worker starts and ends. Each worker runs a copy. Source: Storm's `BaseWorkerHook`."""

    def start(self, conf: Mapping[str, Any], context: WorkerContext) -> None:
        """Add resources to the context, before any task is opened. An error ends the worker."""

    def shutdown(self) -> None:
        """Release resources, after all tasks are closed. Not called if the process is killed."""


class TaskHook:
    """A base class for observers of one task. Called in the executor's thread, with batches of tuples.

    An error in acked() or failed() counts as one of the spout or bolt; any other error ends the executor.
    Source: Storm's `BaseTaskHook`.
    """

    def emitted(self, tuples: Sequence[Tuple]) -> None:
        """Observe tuples that the task emitted on one stream, before they are sent."""

    def executed(self, tuples: Sequence[Tuple], seconds: float) -> None:
        """Observe tuples that a bolt executed in `seconds`."""

    def acked(self, message: Any) -> None:
        """Observe a tuple that a bolt acked, or the message id of a spout's processed tuple."""

    def failed(self, message: Any) -> None:
        """Observe a tuple that a bolt failed, or the message id of a spout's failed tuple."""

    def cleanup(self) -> None:
        """Release resources, after the spout or bolt is closed."""


def start_hooks(conf: Mapping[str, Any], context: WorkerContext, stack: ExitStack) -> None:
    """Start a worker's hooks; the stack ends the started ones. Raises TopologyError if a hook fails."""
    for hook in deepcopy(context.topology.worker_hooks):  # workers share the topology
        try:
            hook.start(conf, context)
        except Exception as error:
            raise TopologyError(f"worker hook {type(hook).__name__}: {error}") from error
        stack.callback(_shut_down, hook)


def _shut_down(hook: WorkerHook) -> None:
    try:
        hook.shutdown()
    except Exception:  # it is not an error of the topology
        logger.exception("worker_hook.failed")
