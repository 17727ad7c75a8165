"""The routes of a task's tuples: the bolts that subscribe to each of its streams, and their groupings.

Used by executor.py. Owns the groupings of the task. Not thread-safe. Called on the executor's thread.
Design: docs/design/topologies.md (routing in columns). Source: Storm's `GrouperFactory` and `Task`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Any

from tuplewire.errors import ConfigError, TopologyError
from tuplewire.grouping.grouping import (
    Fields,
    Grouping,
    GroupingContext,
    LoadSource,
    LocalitySource,
    RingGrouping,
)
from tuplewire.grouping.load_aware import LoadAwareShuffle
from tuplewire_topology.authoring.description import KEYED, GroupingType, Input, Topology
from tuplewire_topology.authoring.groupings import All, Custom, Global, LocalOrShuffle, PartialKey
from tuplewire_topology.authoring.tuples import Stream, Tuple

_values = attrgetter("values")


@dataclass(frozen=True, slots=True)
class Target:
    """A bolt that subscribes to a stream, with the grouping of its subscription."""

    component: str
    subscription: Input
    stream: Stream
    grouping: Grouping

    def route(self, tuples: Sequence[Tuple]) -> Mapping[int, Sequence[int]]:
        """Return, by task of the bolt, the positions of its tuples, in order.

        Raises TopologyError if a key field has an invalid value, or a custom grouping an invalid result.
        """
        try:
            return self.grouping.route(self._keys(tuples))
        except ConfigError as error:
            raise TopologyError(f"{self.component!r} subscribes to {self.subscription}: {error}") from error

    def _keys(self, tuples: Sequence[Tuple]) -> Sequence[Any]:
        if self.subscription.grouping in KEYED:
            key_of = itemgetter(*self.stream.positions(self.subscription.fields))
            return [key_of(message.values) for message in tuples]
        if self.subscription.grouping is GroupingType.CUSTOM:
            return list(map(_values, tuples))
        return tuples


def outbound_tasks(topology: Topology, here: Collection[int]) -> frozenset[int]:
    """Return the tasks elsewhere that the tasks `here` send to. Source: Storm's `workerOutboundTasks`."""
    bolts = {
        bolt
        for component in {topology.component_of(task).id for task in here if task in topology.tasks}
        for stream in topology.component(component).streams
        for bolt, _ in topology.targets_of(component, stream.name)
    }
    return frozenset(task for bolt in bolts for task in topology.tasks_of(bolt)).difference(here)


class Outgoing:
    """The targets of one task. `locality` and `loads` may include more tasks; see GroupingContext."""

    def __init__(
        self, topology: Topology, task: int, locality: LocalitySource = dict, loads: LoadSource = dict
    ) -> None:
        source = topology.component_of(task)
        self._targets: dict[str, list[Target]] = {}
        for stream in source.streams:
            targets = self._targets[stream.name] = []
            for bolt, subscription in topology.targets_of(source.id, stream.name):
                if subscription.grouping is not GroupingType.DIRECT:  # the emitter names the task
                    context = GroupingContext(topology.tasks_of(bolt), task, locality, loads)
                    targets.append(Target(bolt, subscription, stream, _make(subscription, context, stream)))

    def route(self, stream: str, tuples: Sequence[Tuple]) -> dict[int, Sequence[int]]:
        """Return, by task, the positions of its tuples, in order; empty for a direct stream. See Target."""
        positions: dict[int, Sequence[int]] = {}
        for target in self._targets[stream]:
            positions.update(target.route(tuples))
        return positions

    def refresh(self) -> None:
        """Have every grouping read loads and distances again. Call this about once a second."""
        for targets in self._targets.values():
            for target in targets:
                target.grouping.refresh()


def _make(subscription: Input, context: GroupingContext, stream: Stream) -> Grouping:
    if subscription.grouping is not GroupingType.CUSTOM:  # nor DIRECT; see Outgoing
        return _GROUPINGS[subscription.grouping](context)
    chooser = deepcopy(subscription.custom)  # each task has its own state
    chooser.prepare(context, stream)
    return Custom(context, chooser)


_GROUPINGS: Mapping[GroupingType, Callable[[GroupingContext], Grouping]] = {
    GroupingType.SHUFFLE: lambda context: RingGrouping(context.tasks, context.source),
    GroupingType.NONE: lambda context: RingGrouping(context.tasks, context.source),
    GroupingType.FIELDS: lambda context: Fields(context.tasks),
    GroupingType.ALL: lambda context: All(context.tasks),
    GroupingType.GLOBAL: lambda context: Global(context.tasks),
    GroupingType.LOCAL_OR_SHUFFLE: LocalOrShuffle,
    GroupingType.PARTIAL_KEY: lambda context: PartialKey(context.tasks),
    GroupingType.LOAD_AWARE_SHUFFLE: LoadAwareShuffle,
}
