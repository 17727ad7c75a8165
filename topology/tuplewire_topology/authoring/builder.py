"""Building a topology in a program. Source: Storm's `TopologyBuilder`, `InputDeclarer` and their like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self, TypeVar

from tuplewire.errors import TopologyError
from tuplewire.grouping.grouping import CustomStreamGrouping
from tuplewire_topology.authoring.component import BasicBolt, BasicBoltExecutor, Bolt, Spout, streams_of
from tuplewire_topology.authoring.description import (
    Component,
    ComponentKind,
    GroupingType,
    Input,
    Topology,
    check_reserved,
)
from tuplewire_topology.authoring.hooks import WorkerHook
from tuplewire_topology.authoring.topology_settings import TICK_KEY
from tuplewire_topology.authoring.tuples import DEFAULT_STREAM
from tuplewire_topology.authoring.windowed_bolt import WindowedBolt, tick_seconds_of

_Declarer = TypeVar("_Declarer", bound="ComponentDeclarer")


class TopologyBuilder:
    """Collects spouts and bolts, and what each bolt subscribes to.

    ::

        builder = TopologyBuilder()
        builder.set_spout("lines", Lines(), 2)
        builder.set_bolt("split", Split(), 4).shuffle_grouping("lines")
        builder.set_bolt("count", Count(), 4).fields_grouping("split", "word")
        topology = builder.create_topology()

    The object that is set is a template: each task runs a copy. A bolt may name a component that is set
    later, since everything is checked at the end.
    """

    def __init__(self) -> None:
        self._declarers: dict[str, ComponentDeclarer] = {}
        self._worker_hooks: list[WorkerHook] = []

    def set_spout(self, name: str, spout: Spout, parallelism: int = 1) -> ComponentDeclarer:
        """Add a spout under an id of its own, with so many executors; TopologyError for what is no spout."""
        if not isinstance(spout, Spout):
            raise TopologyError(f"spout {name!r} is of type {type(spout).__name__}, which is no Spout")
        return self._add(ComponentDeclarer(ComponentKind.SPOUT, name, spout, parallelism))

    def set_bolt(self, name: str, bolt: Bolt | BasicBolt, parallelism: int = 1) -> BoltDeclarer:
        """Add a bolt under an id of its own, with so many executors; TopologyError for what is no bolt."""
        if isinstance(bolt, BasicBolt):
            bolt = BasicBoltExecutor(bolt)
        if not isinstance(bolt, Bolt):
            raise TopologyError(f"bolt {name!r} is of type {type(bolt).__name__}, which is no Bolt")
        declarer = BoltDeclarer(ComponentKind.BOLT, name, bolt, parallelism)
        if isinstance(bolt, WindowedBolt):
            declarer.add_configuration(TICK_KEY, tick_seconds_of(bolt, f"bolt {name!r}"))
        return self._add(declarer)

    def create_topology(self) -> Topology:
        """Return the topology; TopologyError for what does not hold together, naming it."""
        components = [declarer.component for declarer in self._declarers.values()]
        for component in components:
            check_reserved(component)
        return Topology(components, self._worker_hooks)

    def add_worker_hook(self, hook: WorkerHook) -> None:
        """Have each worker run a hook at its start and end; TopologyError for what is no WorkerHook."""
        if not isinstance(hook, WorkerHook):
            raise TopologyError(f"a worker hook is of type {type(hook).__name__}, which is no WorkerHook")
        self._worker_hooks.append(hook)

    def _add(self, declarer: _Declarer) -> _Declarer:
        name = declarer.component.id
        if name in self._declarers:
            raise TopologyError(f"the id {name!r} is taken: every component has one of its own")
        self._declarers[name] = declarer
        return declarer


class ComponentDeclarer:
    """Says more of a component that was added to a builder; each call returns the declarer.

    component: what was declared so far.
    """

    def __init__(self, kind: ComponentKind, name: str, template: Spout | Bolt, parallelism: int) -> None:
        streams = streams_of(template.outputs, f"{kind} {name!r}")
        self.component = Component(name, kind, streams, (), parallelism, parallelism, {}, template)

    def set_num_tasks(self, count: int) -> Self:
        """Have so many tasks, divided among the executors; one for each executor if not set."""
        self.component = replace(self.component, n_tasks=count)
        return self

    def add_configuration(self, key: str, value: Any) -> Self:
        """Give the component a setting of its own."""
        self.component = replace(self.component, configuration={**self.component.configuration, key: value})
        return self


class BoltDeclarer(ComponentDeclarer):
    """Says what a bolt subscribes to; each call returns the declarer.

    Every grouping names a component and, unless it is "default", one of its streams. `grouping.py` says what
    the groupings do.
    """

    def shuffle_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> Self:
        """Spread the tuples evenly over the tasks."""
        return self._subscribe(component, stream, GroupingType.SHUFFLE)

    def fields_grouping(
        self, component: str, fields: str | Sequence[str], stream: str = DEFAULT_STREAM
    ) -> Self:
        """Send tuples with equal values in a field, or in all of several, to one task.

        The values are str, bytes, numbers or None: what has the same form in every process.
        """
        return self._subscribe(component, stream, GroupingType.FIELDS, fields)

    def all_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> Self:
        """Send every tuple to every task."""
        return self._subscribe(component, stream, GroupingType.ALL)

    def global_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> Self:
        """Send every tuple to the task of the lowest id."""
        return self._subscribe(component, stream, GroupingType.GLOBAL)

    def direct_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> Self:
        """Get the tuples that the emitter names the task of, on a stream declared direct."""
        return self._subscribe(component, stream, GroupingType.DIRECT)

    def local_or_shuffle_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> Self:
        """Spread the tuples over the tasks in the sender's worker, or over all where it has none."""
        return self._subscribe(component, stream, GroupingType.LOCAL_OR_SHUFFLE)

    def partial_key_grouping(
        self, component: str, fields: str | Sequence[str], stream: str = DEFAULT_STREAM
    ) -> Self:
        """Send tuples with equal values to one of two tasks, whichever was sent less so far."""
        return self._subscribe(component, stream, GroupingType.PARTIAL_KEY, fields)

    def load_aware_shuffle_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> Self:
        """Spread the tuples over near tasks, with less for those that report more load than others."""
        return self._subscribe(component, stream, GroupingType.LOAD_AWARE_SHUFFLE)

    def none_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> Self:
        """Not care; as the shuffle grouping."""
        return self._subscribe(component, stream, GroupingType.NONE)

    def custom_grouping(
        self, component: str, grouping: CustomStreamGrouping, stream: str = DEFAULT_STREAM
    ) -> Self:
        """Have a grouping of one's own choose; TopologyError for what is no CustomStreamGrouping."""
        if not isinstance(grouping, CustomStreamGrouping):
            raise TopologyError(
                f"the custom grouping of {self.component.id!r} is of type {type(grouping).__name__}, "
                "which is no CustomStreamGrouping"
            )
        return self._subscribe(component, stream, GroupingType.CUSTOM, custom=grouping)

    def _subscribe(
        self,
        component: str,
        stream: str,
        grouping: GroupingType,
        fields: str | Sequence[str] = (),
        custom: CustomStreamGrouping | None = None,
    ) -> Self:
        names = (fields,) if isinstance(fields, str) else tuple(fields)
        source = Input(component, stream, grouping, names, custom)
        self.component = replace(self.component, inputs=(*self.component.inputs, source))
        return self
