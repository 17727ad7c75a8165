"""A topology as validated data: components, inputs, hooks, and the ids of tasks and executors.

Used by the builder, clusters and executors. All processes need the same topology. Owns the task ids.
Thread-safe. Source: Storm's `StormTopology`. Design: docs/design/topologies.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import accumulate, pairwise
from typing import Any

from tuplewire.errors import MAX_TASK, TopologyError
from tuplewire.grouping.grouping import GroupingContext
from tuplewire.text.formatting import counted, html_table
from tuplewire_topology.authoring.topology_settings import TopologySettings
from tuplewire_topology.authoring.tuples import (
    ACK_STREAM,
    DEFAULT_STREAM,
    FAIL_STREAM,
    INIT_STREAM,
    Stream,
    TupleSource,
    check_name,
)

FIRST_TASK = 1
SYSTEM_PREFIX = "__"
"""Prefix of reserved names. Components and streams of users must not have it."""
ACKER_COMPONENT = "__acker"


class ComponentKind(StrEnum):
    """The two kinds of component."""

    SPOUT = "spout"
    BOLT = "bolt"


class GroupingType(StrEnum):
    """The distribution of a stream over a bolt's tasks. Algorithms: tuplewire/grouping/grouping.py."""

    SHUFFLE = "shuffle"
    FIELDS = "fields"
    ALL = "all"
    GLOBAL = "global"
    DIRECT = "direct"
    LOCAL_OR_SHUFFLE = "local_or_shuffle"
    PARTIAL_KEY = "partial_key"
    LOAD_AWARE_SHUFFLE = "load_aware_shuffle"
    NONE = "none"
    CUSTOM = "custom"


KEYED_GROUPINGS = (GroupingType.FIELDS, GroupingType.PARTIAL_KEY)
"""The groupings that use the values of fields."""


class CustomStreamGrouping(ABC):
    """A user-defined grouping. Each sending task gets a copy. Source: Storm's `CustomStreamGrouping`."""

    def prepare(self, context: GroupingContext, stream: Stream) -> None:  # noqa: B027 - a hook
        """Receive the tasks and the stream before the first choice. The default does nothing."""

    @abstractmethod
    def choose_tasks(self, values: tuple[Any, ...]) -> Iterable[int]:
        """Return the tasks that get a tuple with these values: any number of the context's tasks, or none."""


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """The worker that runs a hook. Source: Storm's `WorkerUserContext`.

    Attributes:
        topology_id: The name under which the topology runs.
        tasks: The worker's tasks when it starts.
        resources: The objects for TopologyContext.resource(), by name.
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


@dataclass(frozen=True, slots=True)
class Input:
    """A subscription. Source: Storm's `GlobalStreamId`, `Grouping`."""

    component: str
    stream: str = DEFAULT_STREAM
    grouping: GroupingType = GroupingType.SHUFFLE
    fields: tuple[str, ...] = ()
    custom_grouping: CustomStreamGrouping | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f"stream {self.stream!r} of {self.component!r}"


@dataclass(frozen=True, slots=True)
class Component:
    """A spout or bolt. `parallelism` executors share its `n_tasks` tasks. Source: Storm's `ComponentCommon`.

    `configuration` overrides the topology's settings, by key. Each task runs a copy of `prototype`.
    """

    id: str
    kind: ComponentKind
    streams: tuple[Stream, ...] = ()
    inputs: tuple[Input, ...] = ()
    parallelism: int = 1
    n_tasks: int = 1
    configuration: Mapping[str, Any] = field(default_factory=dict)
    prototype: Any = field(default=None, compare=False, repr=False)

    def stream(self, name: str) -> Stream:
        """Return a declared stream. Raises TopologyError for an unknown name."""
        for stream in self.streams:
            if stream.name == name:
                return stream
        known = ", ".join(repr(stream.name) for stream in self.streams) or "none"
        raise TopologyError(f"{self.id!r} has no stream {name!r}; it declares {known}")


class Topology:
    """A validated graph of components, which may have cycles. Task ids form one range per component.

    Ids start at 1 and follow the order of the components' ids, not of construction; the acker is last.

    Raises:
        TopologyError: A component, stream or field is unknown, or components are not valid or do not match.
    """

    def __init__(self, components: Iterable[Component], worker_hooks: Iterable[WorkerHook] = ()) -> None:
        self.worker_hooks = list(worker_hooks)
        """The user's hooks. Each worker runs copies of them."""
        # Sorted, so that all processes give the same ids to tasks; the acker is last, so it shifts no ids.
        ordered = sorted(components, key=lambda each: (each.id == ACKER_COMPONENT, each.id))
        self.components = {component.id: component for component in ordered}
        for component in self.components.values():
            _check_component(component)
            for subscription in component.inputs:
                self._check_input(component, subscription)
        if not any(component.kind is ComponentKind.SPOUT for component in self.components.values()):
            raise TopologyError("a topology needs at least one spout")
        self._component_ids = list(self.components)
        sizes = [component.n_tasks for component in self.components.values()]
        self._first_ids = list(accumulate(sizes, initial=FIRST_TASK))
        if self._first_ids[-1] > MAX_TASK:
            raise TopologyError(f"{self._first_ids[-1] - FIRST_TASK} tasks exceed the number of task ids")

    def __repr__(self) -> str:
        parts = ", ".join(f"{each.kind} {each.id} x{each.n_tasks}" for each in self.components.values())
        return f"<Topology {parts}>"

    def _repr_html_(self) -> str:
        rows = []
        for each in self.components.values():
            tasks = self.tasks_of(each.id)
            inputs = ", ".join(
                f"{source.component}.{source.stream} by {source.grouping} {', '.join(source.fields)}".rstrip()
                for source in each.inputs
            )
            task_ids = f"{tasks[0]}-{tasks[-1]}" if len(tasks) > 1 else tasks[0]
            rows.append((each.id, each.kind, each.parallelism, task_ids, inputs))
        title = f"{counted(len(self.components), 'component')}, {counted(len(self.tasks), 'task')}"
        return html_table(title, ("component", "kind", "executors", "tasks", "inputs"), rows)

    def _check_input(self, bolt: Component, subscription: Input) -> None:
        source = self.components.get(subscription.component)
        if source is None:
            known = ", ".join(map(repr, self.components))
            source_text = f"{subscription.component!r}, which is not a component"
            raise TopologyError(f"{bolt.id!r} subscribes to {source_text}; known are {known}")
        stream = source.stream(subscription.stream)
        stream.positions(subscription.fields)  # raises for an unknown field
        if stream.direct != (subscription.grouping is GroupingType.DIRECT):
            raise TopologyError(
                f"{bolt.id!r} subscribes to {subscription} with the {subscription.grouping} grouping, "
                f"but the stream is {'direct' if stream.direct else 'not direct'}: "
                "use the direct grouping for direct streams only"
            )

    # --- tasks ------------------------------------------------------------------------------------

    @property
    def tasks(self) -> range:
        """The ids of all tasks."""
        return range(self._first_ids[0], self._first_ids[-1])

    def component(self, component: str) -> Component:
        """Return a component by id. Raises TopologyError for an unknown id."""
        if component not in self.components:
            known = ", ".join(map(repr, self.components))
            raise TopologyError(f"{component!r} is not a component; known are {known}")
        return self.components[component]

    def tasks_of(self, component: str) -> range:
        """Return the ids of a component's tasks. Raises TopologyError for an unknown component."""
        start = self._first_ids[self._component_ids.index(self.component(component).id)]
        return range(start, start + self.components[component].n_tasks)

    @property
    def spout_tasks(self) -> frozenset[int]:
        """The tasks of all spouts."""
        return frozenset(task for task in self.tasks if self.component_of(task).kind is ComponentKind.SPOUT)

    def component_of(self, task: int) -> Component:
        """Return the component of a task. Raises TopologyError for an unknown task."""
        if task not in self.tasks:
            known = f"{self.tasks[0]} to {self.tasks[-1]}"
            raise TopologyError(f"task {task} is not in this topology, which has the tasks {known}")
        return self.components[self._component_ids[bisect_right(self._first_ids, task) - 1]]

    def executors_of(self, component: str) -> list[range]:
        """Return the tasks of each executor of a component. Executors differ by at most one task."""
        tasks, count = self.tasks_of(component), self.components[component].parallelism
        ends = [len(tasks) * number // count for number in range(count + 1)]
        return [tasks[begin:end] for begin, end in pairwise(ends)]

    def subscribers_of(self, component: str, stream: str = DEFAULT_STREAM) -> list[tuple[str, Input]]:
        """Return a stream's subscribers and their inputs. Raises TopologyError for an unknown stream."""
        self.component(component).stream(stream)
        return [
            (bolt.id, subscription)
            for bolt in self.components.values()
            for subscription in bolt.inputs
            if (subscription.component, subscription.stream) == (component, stream)
        ]

    def tick_levels(self, conf: Mapping[str, Any]) -> list[list[str]]:
        """Return the bolts with ticks, in levels: a bolt precedes all bolts downstream, except in a cycle.

        All bolts of a cycle are in the same level. `conf` has the topology's settings, by Storm's keys.
        """
        levels: dict[int, list[str]] = {}
        for name, bolt in self.components.items():
            settings = TopologySettings.from_conf({**conf, **bolt.configuration})
            if settings.tick_seconds and bolt.kind is ComponentKind.BOLT and name != ACKER_COMPONENT:
                levels.setdefault(len(self._upstream(name)), []).append(name)
        return [levels[depth] for depth in sorted(levels)]

    def _upstream(self, component: str) -> set[str]:
        """Return a component and all its ancestors. The set grows downstream, but not within a cycle."""
        ancestors: set[str] = set()
        pending = [component]
        while pending:
            name = pending.pop()
            if name not in ancestors and name != ACKER_COMPONENT:  # acks would make a cycle of everything
                ancestors.add(name)
                pending += [subscription.component for subscription in self.components[name].inputs]
        return ancestors

    def source(self, task: int, stream: str) -> TupleSource:
        """Return the source of a task's stream. Raises TopologyError for an unknown task or stream."""
        component = self.component_of(task)
        return TupleSource(component.id, task, component.stream(stream))


def _check_component(component: Component) -> None:
    check_name(component.id, "a component's id")
    subject = f"{component.kind} {component.id!r}"
    names = [stream.name for stream in component.streams]
    if len(set(names)) < len(names):
        raise TopologyError(f"{subject} declares the stream {max(names, key=names.count)!r} twice")
    for name, number in (("parallelism", component.parallelism), ("number of tasks", component.n_tasks)):
        if type(number) is not int or number < 1:
            raise TopologyError(f"{subject} has the {name} {number!r}: set an integer of at least 1")
    if component.parallelism > component.n_tasks:
        raise TopologyError(
            f"{subject} has {component.parallelism} executors for {component.n_tasks} task(s); "
            "every executor runs at least one"
        )
    sources = [(subscription.component, subscription.stream) for subscription in component.inputs]
    for subscription, source in zip(component.inputs, sources, strict=True):
        # Acks from acker tasks are a spout's only inputs.
        if component.kind is ComponentKind.SPOUT and subscription.component != ACKER_COMPONENT:
            raise TopologyError(f"{subject} subscribes to {subscription}; only bolts do")
        if sources.count(source) > 1:
            raise TopologyError(f"{subject} subscribes to {subscription} twice")
        if (subscription.grouping in KEYED_GROUPINGS) != bool(subscription.fields):
            raise TopologyError(
                f"{subject} subscribes to {subscription} with the {subscription.grouping} grouping "
                f"and {len(subscription.fields)} field(s): "
                "only fields and partial_key use fields, and need one or more"
            )


def schedule_evenly(topology: Topology, n_workers: int) -> list[list[int]]:
    """Return each worker's tasks, for at most one worker per executor. Source: Storm's `EvenScheduler`."""
    executors = [tasks for name in topology.components for tasks in topology.executors_of(name)]
    tasks_by_worker: list[list[int]] = [[] for _ in range(min(n_workers, len(executors)))]
    for number, tasks in enumerate(executors):
        tasks_by_worker[number % len(tasks_by_worker)] += tasks
    return tasks_by_worker


def with_ackers(topology: Topology, n_ackers: int) -> Topology:
    """Return a topology with acker tasks and their streams, or the given one if `n_ackers` is 0.

    All processes must use the same number. Raises TopologyError if the topology already has acker tasks.
    """
    if ACKER_COMPONENT in topology.components:
        raise TopologyError("the topology already has acker tasks: pass the result of create_topology()")
    if not n_ackers:
        return topology
    components = [_with_acker_streams(component) for component in topology.components.values()]
    inputs = [
        Input(component.id, stream.name, GroupingType.DIRECT)
        for component in components
        for stream in component.streams
        if stream.name in {INIT_STREAM, ACK_STREAM, FAIL_STREAM}
    ]
    acker = Component(ACKER_COMPONENT, ComponentKind.BOLT, _OUTCOMES, tuple(inputs), n_ackers, n_ackers)
    return Topology([*components, acker], topology.worker_hooks)


_OUTCOMES = tuple(Stream("roots", name=name, direct=True) for name in (ACK_STREAM, FAIL_STREAM))


def _with_acker_streams(component: Component) -> Component:
    """Return a component with streams to the acker and, for a spout, inputs from it."""
    is_spout = component.kind is ComponentKind.SPOUT
    edges = Stream("roots", "edges", name=INIT_STREAM if is_spout else ACK_STREAM, direct=True)
    outcomes = [Input(ACKER_COMPONENT, stream.name, GroupingType.DIRECT) for stream in _OUTCOMES if is_spout]
    streams = (*component.streams, edges, _OUTCOMES[1])
    return replace(component, streams=streams, inputs=(*component.inputs, *outcomes))
