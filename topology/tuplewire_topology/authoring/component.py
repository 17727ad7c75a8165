"""Spouts and bolts: what a topology's user writes. Source: Storm's `ISpout`, `IBolt`, `IBasicBolt`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tuplewire.errors import TopologyError, TuplewireError
from tuplewire_topology.authoring.collector import BasicOutputCollector, OutputCollector, SpoutOutputCollector
from tuplewire_topology.authoring.description import Component, Topology
from tuplewire_topology.authoring.hooks import TaskHook
from tuplewire_topology.authoring.tuples import Stream, Tuple
from tuplewire_topology.authoring.user_metrics import BUCKETS, CounterMetric, HistogramMetric, UserMetrics


@dataclass(frozen=True, slots=True)
class TopologyContext:
    """One task's place in a topology; `topology` answers what else there is to ask.

    topology_id: the name under which the topology runs. worker_port: the one that its worker listens on; 0
    where it has none. worker_tasks: those of its worker when the task was opened. metrics: what the tasks of
    its process have registered. resources: see resource(). hooks: the task's; see add_task_hook().

    What a task registers is in `/metrics` as `tuplewire_user_NAME`, by component and task.
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

    def resource(self, name: str) -> Any:
        """Return what a worker hook has put under a name; TopologyError where there is none.

        Source: Storm's `getResource`, and `getSharedExecutor`, which is a resource here.
        """
        if name not in self.resources:
            known = ", ".join(map(repr, self.resources)) or "none"
            raise TopologyError(f"no worker hook has a resource {name!r}; there are {known}")
        return self.resources[name]

    def add_task_hook(self, hook: TaskHook) -> None:
        """Have a hook observe the task; to be called in open() or prepare(). Source: `addTaskHook`."""
        self.hooks.append(hook)

    def register_counter(self, name: str) -> CounterMetric:
        """Return the task's counter of a name; the same one each time.

        Raises TopologyError for a name of another kind of metric. Source: Storm's `registerCounter`, and
        `registerMeter`, whose rate is Prometheus' work.
        """
        return self.metrics.counter(self.task, name)

    def register_gauge(self, name: str, read: Callable[[], float]) -> None:
        """Have a function read whenever somebody looks at the metrics, from another thread.

        A value that cannot be read is left out. Raises as register_counter. Source: Storm's `registerGauge`.
        """
        self.metrics.gauge(self.task, name, read)

    def register_histogram(self, name: str, buckets: Iterable[float] = BUCKETS) -> HistogramMetric:
        """Return the task's histogram of a name; the same one each time.

        buckets: upper bounds; the default suits seconds. Raises as register_counter. Source: Storm's
        `registerHistogram`, and `registerTimer`, which is one of seconds.
        """
        return self.metrics.histogram(self.task, name, buckets)


class FailedError(TuplewireError):
    """Raised by a BasicBolt to fail the tuple that it was given. Source: Storm's `FailedException`."""


class Spout(ABC):
    """A source of tuples. Each task runs a copy of the object that the topology was built with.

    Everything is called from one thread. What does not copy (a file, a connection) is made in open().
    """

    outputs: Sequence[str] | Sequence[Stream] = ()
    """What it emits: the fields of the stream "default", or several Streams."""

    collector: SpoutOutputCollector
    context: TopologyContext

    def open(
        self,
        conf: Mapping[str, Any],  # noqa: ARG002 - for those who override
        context: TopologyContext,
        collector: SpoutOutputCollector,
    ) -> None:
        """Get ready; by default keeps context and collector as attributes.

        conf: the topology's settings, with the component's own.
        """
        self.context = context
        self.collector = collector

    @abstractmethod
    def next_tuple(self) -> None:
        """Emit what there is, one tuple or a few, and return; do not wait for more to come."""

    @property
    def exhausted(self) -> bool:
        """Whether there is no more to come; a topology ends when that holds for all spouts.

        next_tuple() is then called no longer, unless a tuple fails or the collector's wake() is called.

        Source: Storm's `CompletableSpout`.
        """
        return False

    def ack(self, message_id: Any) -> None:
        """Learn that the tuple emitted with this message id, and all that descends from it, is processed."""

    def fail(self, message_id: Any) -> None:
        """Learn that it is not, and will not be."""

    def activate(self) -> None:
        """Learn that next_tuple() is going to be called; a spout begins so."""

    def deactivate(self) -> None:
        """Learn that next_tuple() is not called for the time being."""

    def close(self) -> None:
        """Let go of what open() took."""


class Bolt(ABC):
    """A consumer of tuples, which may emit others. Each task runs a copy of the topology's object.

    Everything is called from one thread. What does not copy (a file, a connection) is made in prepare().
    """

    outputs: Sequence[str] | Sequence[Stream] = ()
    """What it emits: the fields of the stream "default", or several Streams."""

    collector: OutputCollector
    context: TopologyContext

    def prepare(
        self,
        conf: Mapping[str, Any],  # noqa: ARG002 - for those who override
        context: TopologyContext,
        collector: OutputCollector,
    ) -> None:
        """Get ready; by default keeps context and collector as attributes.

        conf: the topology's settings, with the component's own.
        """
        self.context = context
        self.collector = collector

    @abstractmethod
    def execute(self, message: Tuple) -> None:
        """Process a tuple, and ack or fail it, now or later."""

    def cleanup(self) -> None:
        """Let go of what prepare() took."""


class BasicBolt(ABC):
    """A bolt that need not ack: a tuple is acked once processed, and what is emitted is anchored to it."""

    outputs: Sequence[str] | Sequence[Stream] = ()
    """What it emits: the fields of the stream "default", or several Streams."""

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext) -> None:
        """Get ready; by default nothing happens. conf: the topology's settings, with the component's own."""

    @abstractmethod
    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:
        """Process a tuple; FailedError fails it, and what another error does is the executor's policy."""

    def cleanup(self) -> None:
        """Let go of what prepare() took."""


class BasicBoltExecutor(Bolt):
    """Runs a BasicBolt as the Bolt that it is short for; FailedError fails a tuple. Source: Storm's."""

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
            self.collector.fail(message)
        else:
            self.collector.ack(message)

    def cleanup(self) -> None:
        self.bolt.cleanup()


def streams_of(outputs: Any, what: str) -> tuple[Stream, ...]:
    """Return the streams that a component's `outputs` declare; TopologyError, naming it, for what is none."""
    if isinstance(outputs, list | tuple):
        if not outputs or all(isinstance(output, Stream) for output in outputs):
            return tuple(outputs)
        if all(isinstance(output, str) for output in outputs):
            return (Stream(*outputs),)
    raise TopologyError(
        f"the outputs of {what} are {outputs!r}; they are a tuple of field names, or of Streams"
    )


class TaskError(TuplewireError):
    """A spout, bolt or grouping has raised, or reported, an error, which is the cause of this one.

    component, task: where. tuple: what was being processed; None where nothing was.
    """

    def __init__(self, component: str, task: int, error: BaseException, message: Tuple | None = None) -> None:
        about = "" if message is None else f", at {message!r}"
        super().__init__(f"task {task} of {component!r}: {type(error).__name__}: {error}{about}")
        self.component = component
        self.task = task
        self.tuple = message
        self.__cause__ = error


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A tuple that could not be processed or sent, and why.

    tries: how often the bolt was given it; 0: it could not be sent.
    """

    tuple: Tuple
    error: TaskError
    tries: int = 0

    @property
    def reason(self) -> str:
        """What was raised, in a line."""
        cause = self.error.__cause__
        return f"{type(cause).__name__}: {cause}"
