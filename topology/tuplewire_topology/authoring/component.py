"""Base classes of spouts, bolts and their hooks, which users implement, and errors of tasks.

Used by programs that define a topology, and by executors, which call one task's methods from one thread.
Owns the contexts of tasks. Not thread-safe. Source: Storm's `ISpout`, `IBolt`, `IBasicBolt`, `ITaskHook`.
Design: docs/design/topologies.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from tuplewire.errors import TopologyError, TuplewireError
from tuplewire.text.events import event_logger
from tuplewire_topology.authoring.collector import BasicOutputCollector, OutputCollector, SpoutOutputCollector
from tuplewire_topology.authoring.description import Component, Topology, WorkerContext, WorkerHook
from tuplewire_topology.authoring.tuples import Stream, Tuple
from tuplewire_topology.authoring.user_metrics import (
    DEFAULT_BUCKETS,
    CounterMetric,
    Gauge,
    HistogramMetric,
    UserMetrics,
)

logger = event_logger(__name__)


class TaskHook:
    """A base class for observers of one task. Called in the executor's thread.

    An error in on_ack() or on_fail() is the component's; any other ends the executor. Source: `BaseTaskHook`.
    """

    def on_emit(self, tuples: Sequence[Tuple]) -> None:
        """Observe tuples that the task emitted on one stream, before they are sent."""

    def on_execute(self, tuples: Sequence[Tuple], seconds: float) -> None:
        """Observe tuples that a bolt executed in `seconds` in total, without the time for sending."""

    def on_ack(self, message: Any) -> None:
        """Observe a tuple that a bolt acked, or the id of a spout's tuple that a tracker reports."""

    def on_fail(self, message: Any) -> None:
        """Observe a tuple that a bolt failed, also a dead letter, or the id of a spout's failed tuple."""

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
        logger.exception("worker_hook.shutdown_failed", extra={"hook": type(hook).__name__})


@dataclass(frozen=True, slots=True)
class TopologyContext:
    """The place of one task in a topology, its metrics, and the resources of its worker.

    Attributes:
        topology_id: The name under which the topology runs.
        worker_port: The port of the worker; 0: it does not listen.
        worker_tasks: The worker's tasks when this task was opened.
        metrics: Of all tasks of the worker, in `/metrics` as `tuplewire_user_NAME{component,task}`.
    """

    topology_id: str
    topology: Topology
    task: int
    worker_port: int = 0
    worker_tasks: frozenset[int] = frozenset()
    metrics: UserMetrics = field(default_factory=UserMetrics, repr=False, compare=False)
    resources: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    hooks: list[TaskHook] = field(default_factory=list, repr=False, compare=False)

    @property
    def component(self) -> Component:
        """The component of the task."""
        return self.topology.component_of(self.task)

    @property
    def component_tasks(self) -> range:
        """All tasks of the component."""
        return self.topology.tasks_of(self.component.id)

    @property
    def task_index(self) -> int:
        """The index of the task in component_tasks, from 0."""
        return self.component_tasks.index(self.task)

    def resource(self, name: str) -> Any:
        """Return a hook's resource; TopologyError if unknown. Source: `getResource`, `getSharedExecutor`."""
        if name not in self.resources:
            known = ", ".join(map(repr, self.resources)) or "none"
            raise TopologyError(f"no worker hook has a resource {name!r}; there are {known}")
        return self.resources[name]

    def add_task_hook(self, hook: TaskHook) -> None:
        """Add an observer of the task. Call this in open() or prepare(). Source: `addTaskHook`."""
        self.hooks.append(hook)

    def register_counter(self, name: str) -> CounterMetric:
        """Return the task's counter with this name, which is created by the first call.

        Source: Storm's `registerCounter` and `registerMeter`; Prometheus computes the rate.

        Raises:
            TopologyError: The name is not valid, or belongs to another metric in `/metrics`.
        """
        return self.metrics.register(self.task, name, CounterMetric())

    def register_gauge(self, name: str, read: Callable[[], float]) -> None:
        """Add or replace a gauge. Raises errors as register_counter() does. Source: Storm's `registerGauge`.

        Args:
            read: Returns the value, from another thread, for each scrape. If it fails, the sample is omitted.
        """
        self.metrics.register(self.task, name, Gauge(read))

    def register_histogram(self, name: str, buckets: Iterable[float] = DEFAULT_BUCKETS) -> HistogramMetric:
        """Return the task's histogram with this name, which is created by the first call.

        Raises errors as register_counter() does. Source: Storm's `registerHistogram` and `registerTimer`.

        Args:
            buckets: Upper bounds, finite and increasing. The default is for seconds.
        """
        return self.metrics.register(self.task, name, HistogramMetric(buckets))


class FailedError(TuplewireError):
    """Raised by a BasicBolt to fail its input tuple. Source: Storm's `FailedException`."""


class Spout(ABC):
    """A source of tuples. Each task runs a copy of the object that was given to the builder.

    All methods are called from one thread. Create objects that cannot be copied, such as files, in open().
    """

    outputs: Sequence[str] | Sequence[Stream] = ()
    """The fields of the stream "default", or several Streams."""

    collector: SpoutOutputCollector
    context: TopologyContext

    def open(
        self, conf: Mapping[str, Any], context: TopologyContext, collector: SpoutOutputCollector
    ) -> None:
        """Prepare the task. The default sets the attributes context and collector.

        Args:
            conf: The topology's settings, by Storm's keys, overridden by the component's settings.
        """
        self.context = context
        self.collector = collector

    @abstractmethod
    def next_tuple(self) -> None:
        """Emit the next tuple or a few, if any, and return without waiting for more."""

    @property
    def exhausted(self) -> bool:
        """True if the spout has no further tuples, which is a condition of the end of a topology.

        While it is True, next_tuple() is not called. It may become False again, for example in fail(), or
        before the collector's wake() is called. Source: Storm's `CompletableSpout`.
        """
        return False

    def ack(self, message_id: Any) -> None:
        """Process the success of a tuple emitted with this id, and of all its descendants."""

    def fail(self, message_id: Any) -> None:
        """Process the failure of a tuple emitted with this id, or of one of its descendants."""

    def activate(self) -> None:
        """Prepare for calls of next_tuple(). Also called before the first one."""

    def deactivate(self) -> None:
        """Prepare for a pause, in which next_tuple() is not called."""

    def close(self) -> None:
        """Release the resources of open()."""


class Bolt(ABC):
    """A consumer of tuples, which may emit others. Each task runs a copy of the given object.

    All methods are called from one thread. Create objects that cannot be copied, such as files, in prepare().
    """

    outputs: Sequence[str] | Sequence[Stream] = ()
    """The fields of the stream "default", or several Streams."""

    collector: OutputCollector
    context: TopologyContext

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext, collector: OutputCollector) -> None:
        """Prepare the task. The default sets the attributes context and collector. See Spout.open()."""
        self.context = context
        self.collector = collector

    @abstractmethod
    def execute(self, message: Tuple) -> None:
        """Process a tuple, and ack or fail it, now or later."""

    def cleanup(self) -> None:
        """Release the resources of prepare()."""


class BasicBolt(ABC):
    """A bolt with automatic acks after execute(). Emitted tuples are anchored to the input tuple."""

    outputs: Sequence[str] | Sequence[Stream] = ()
    """The fields of the stream "default", or several Streams."""

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext) -> None:
        """Prepare the task. `conf` has the topology's settings, overridden by the component's."""

    @abstractmethod
    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:
        """Process a tuple. FailedError fails it; `topology.error.policy` handles other errors."""

    def cleanup(self) -> None:
        """Release the resources of prepare()."""


class BasicBoltExecutor(Bolt):
    """Adapts a BasicBolt to Bolt. Source: Storm's `BasicBoltExecutor`."""

    def __init__(self, bolt: BasicBolt) -> None:
        self.bolt = bolt
        self.outputs = bolt.outputs

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext, collector: OutputCollector) -> None:
        super().prepare(conf, context, collector)
        self.bolt.prepare(conf, context)

    def execute(self, message: Tuple) -> None:
        try:
            self.bolt.execute(message, BasicOutputCollector(self.collector, message))
        except FailedError:
            self.collector.fail(message)  # expected: not an error, and not retried
        else:
            self.collector.ack(message)

    def cleanup(self) -> None:
        self.bolt.cleanup()


def streams_of(outputs: Any, owner: str) -> tuple[Stream, ...]:
    """Return the declared streams. Raises TopologyError, with the name `owner`, for invalid outputs."""
    if isinstance(outputs, list | tuple):
        if not outputs or all(isinstance(output, Stream) for output in outputs):
            return tuple(outputs)
        if all(isinstance(output, str) for output in outputs):
            return (Stream(*outputs),)
    raise TopologyError(
        f"the outputs of {owner} must be a tuple of field names, or of Streams, not {outputs!r}"
    )


class TaskError(TuplewireError):
    """An error of a spout, bolt or grouping, its cause, and the `tuple` that was being processed, or None."""

    def __init__(self, component: str, task: int, error: BaseException, message: Tuple | None = None) -> None:
        about = "" if message is None else f", at {message!r}"
        super().__init__(f"task {task} of {component!r}: {type(error).__name__}: {error}{about}")
        self.component = component
        self.task = task
        self.tuple = message
        self.__cause__ = error


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A tuple that could not be processed or sent. `tries`: attempts of bolt or Rows spout; 0: not sent."""

    tuple: Tuple
    error: TaskError
    tries: int = 0

    @property
    def reason(self) -> str:
        """The type and message of the error, as text."""
        cause = self.error.__cause__
        return f"{type(cause).__name__}: {cause}"
