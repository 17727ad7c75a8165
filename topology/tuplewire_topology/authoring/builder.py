"""Builds a topology from spouts and bolts, and validates it at the end.

Used by programs that define a topology. Owns the declarations until create_topology(). Not thread-safe.
Source: Storm's `TopologyBuilder`, `InputDeclarer`. Design: docs/design/topologies.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self, TypeVar

from tuplewire.errors import TopologyError
from tuplewire_topology.authoring.component import BasicBolt, BasicBoltExecutor, Bolt, Spout, streams_of
from tuplewire_topology.authoring.description import (
    SYSTEM_PREFIX,
    Component,
    ComponentKind,
    CustomStreamGrouping,
    GroupingType,
    Input,
    Topology,
    WorkerHook,
)
from tuplewire_topology.authoring.topology_settings import TICK_KEY
from tuplewire_topology.authoring.tuples import DEFAULT_STREAM
from tuplewire_topology.authoring.windows import WindowedBolt, tick_seconds_of

_Declarer = TypeVar("_Declarer", bound="ComponentDeclarer")


class TopologyBuilder:
    """Collects spouts, bolts, and the streams that each bolt subscribes to.

    ::

        builder = TopologyBuilder()
        builder.set_spout("lines", Lines(), 2)
        builder.set_bolt("split", Split(), 4).shuffle_grouping("lines")
        builder.set_bolt("count", Count(), 4).fields_grouping("split", "word")
        topology = builder.create_topology()

    Each task runs a copy of its object. create_topology() checks names: a bolt may name a later component.
    """

    def __init__(self) -> None:
        self._declarers: dict[str, ComponentDeclarer] = {}
        self._worker_hooks: list[WorkerHook] = []

    def set_spout(self, name: str, spout: Spout, parallelism: int = 1) -> ComponentDeclarer:
        """Add a spout.

        Args:
            name: The id of the component. Ids that begin with `__` are reserved.
            parallelism: The number of executors (threads). Each runs one task; see set_num_tasks().

        Raises:
            TopologyError: The id is taken, or the spout has a wrong type or wrong `outputs`.
        """
        if not isinstance(spout, Spout):
            raise TopologyError(f"spout {name!r} is of type {type(spout).__name__}, which is not a Spout")
        return self._add(ComponentDeclarer(ComponentKind.SPOUT, name, spout, parallelism))

    def set_bolt(self, name: str, bolt: Bolt | BasicBolt, parallelism: int = 1) -> BoltDeclarer:
        """Add a bolt, like set_spout(). Methods of the result subscribe it to streams.

        Raises:
            TopologyError: As in set_spout(), or a WindowedBolt has no `window`.
        """
        if isinstance(bolt, BasicBolt):
            bolt = BasicBoltExecutor(bolt)  # executors run only Bolts
        if not isinstance(bolt, Bolt):
            raise TopologyError(f"bolt {name!r} is of type {type(bolt).__name__}, not a Bolt or BasicBolt")
        declarer = BoltDeclarer(ComponentKind.BOLT, name, bolt, parallelism)
        if isinstance(bolt, WindowedBolt):  # ticks close its windows by time, and the final tick all windows
            declarer.add_configuration(TICK_KEY, tick_seconds_of(bolt, f"bolt {name!r}"))
        return self._add(declarer)

    def create_topology(self) -> Topology:
        """Return the topology. Raises TopologyError, with the name at fault, if it is not valid."""
        components = [declarer.component for declarer in self._declarers.values()]
        for component in components:
            for name in (component.id, *(stream.name for stream in component.streams)):
                if name.startswith(SYSTEM_PREFIX):
                    raise TopologyError(
                        f"{component.kind} {component.id!r}: the name {name!r} is reserved, "
                        f"as all that begin with {SYSTEM_PREFIX!r}"
                    )
        return Topology(components, self._worker_hooks)

    def add_worker_hook(self, hook: WorkerHook) -> None:
        """Run a hook at the start and end of each worker. Raises TopologyError for a wrong type."""
        if not isinstance(hook, WorkerHook):
            raise TopologyError(f"a worker hook is of type {type(hook).__name__}, which is not a WorkerHook")
        self._worker_hooks.append(hook)

    def _add(self, declarer: _Declarer) -> _Declarer:
        name = declarer.component.id
        if name in self._declarers:
            raise TopologyError(f"the id {name!r} is taken: choose an id that no other component has")
        self._declarers[name] = declarer
        return declarer


class ComponentDeclarer:
    """Configures one component of a builder. `component` is the current state; methods return self."""

    def __init__(self, kind: ComponentKind, name: str, prototype: Spout | Bolt, parallelism: int) -> None:
        streams = streams_of(prototype.outputs, f"{kind} {name!r}")
        self.component = Component(name, kind, streams, (), parallelism, parallelism, {}, prototype)

    def set_num_tasks(self, count: int) -> Self:
        """Set the number of tasks, which the executors share. The default is one for each executor."""
        self.component = replace(self.component, n_tasks=count)
        return self

    def add_configuration(self, key: str, value: Any) -> Self:
        """Add a setting for this component only."""
        self.component = replace(self.component, configuration={**self.component.configuration, key: value})
        return self


class BoltDeclarer(ComponentDeclarer):
    """Adds the subscriptions of a bolt. Methods return self. Algorithms: tuplewire/grouping/grouping.py.

    `component` is the id of the emitter, and `stream` one of its streams. create_topology() checks them.
    """

    def shuffle_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> Self:
        """Spread the tuples evenly over the tasks."""
        return self._subscribe(component, stream, GroupingType.SHUFFLE)

    def fields_grouping(
        self, component: str, fields: str | Sequence[str], stream: str = DEFAULT_STREAM
    ) -> Self:
        """Send tuples with equal values in one field, or in all of several fields, to the same task.

        The values must be str, bytes, numbers or None, which have the same form in every process.
        """
        return self._subscribe(component, stream, GroupingType.FIELDS, fields)

    def all_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> Self:
        """Send every tuple to every task."""
        return self._subscribe(component, stream, GroupingType.ALL)

    def global_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> Self:
        """Send every tuple to the task with the lowest id."""
        return self._subscribe(component, stream, GroupingType.GLOBAL)

    def direct_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> Self:
        """Send each tuple to the task that its emitter names. The stream must be declared as direct."""
        return self._subscribe(component, stream, GroupingType.DIRECT)

    def local_or_shuffle_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> Self:
        """Spread the tuples over the tasks in the sender's worker, or over all if it does not have any."""
        return self._subscribe(component, stream, GroupingType.LOCAL_OR_SHUFFLE)

    def partial_key_grouping(
        self, component: str, fields: str | Sequence[str], stream: str = DEFAULT_STREAM
    ) -> Self:
        """Send tuples with equal values to one of two tasks: the one with fewer tuples so far."""
        return self._subscribe(component, stream, GroupingType.PARTIAL_KEY, fields)

    def load_aware_shuffle_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> Self:
        """Spread the tuples over nearby tasks, with fewer for tasks that report a higher load."""
        return self._subscribe(component, stream, GroupingType.LOAD_AWARE_SHUFFLE)

    def none_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> Self:
        """Leave the choice to Tuplewire, which uses the shuffle grouping."""
        return self._subscribe(component, stream, GroupingType.NONE)

    def custom_grouping(
        self, component: str, grouping: CustomStreamGrouping, stream: str = DEFAULT_STREAM
    ) -> Self:
        """Choose tasks by a custom grouping. Raises TopologyError for a wrong type."""
        if not isinstance(grouping, CustomStreamGrouping):
            raise TopologyError(
                f"the custom grouping of {self.component.id!r} is of type {type(grouping).__name__}, "
                "which is not a CustomStreamGrouping"
            )
        return self._subscribe(component, stream, GroupingType.CUSTOM, custom_grouping=grouping)

    def _subscribe(
        self,
        component: str,
        stream: str,
        grouping: GroupingType,
        fields: str | Sequence[str] = (),
        custom_grouping: CustomStreamGrouping | None = None,
    ) -> Self:
        names = (fields,) if isinstance(fields, str) else tuple(fields)  # a string is one field
        subscription = Input(component, stream, grouping, names, custom_grouping)
        self.component = replace(self.component, inputs=(*self.component.inputs, subscription))
        return self
