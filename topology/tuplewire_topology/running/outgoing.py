"""Where a task's tuples go: the bolts that subscribe to each of its streams, and their groupings.

Source: Storm's `GrouperFactory`, and what its `Task` knows of its outgoing tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Any

from tuplewire.errors import ConfigError, TopologyError
from tuplewire.grouping.grouping import (
    All,
    Custom,
    Fields,
    Global,
    Grouping,
    GroupingContext,
    LoadSource,
    LocalitySource,
    LocalOrShuffle,
    PartialKey,
    RingGrouping,
    nothing,
)
from tuplewire.grouping.load_aware import LoadAwareShuffle
from tuplewire_topology.authoring.description import KEYED, GroupingType, Input, Topology
from tuplewire_topology.authoring.tuples import Stream, Tuple

_values = attrgetter("values")


@dataclass(frozen=True, slots=True)
class Target:
    """One bolt that subscribes to a stream, and the grouping by which it does."""

    component: str
    subscription: Input
    stream: Stream
    grouping: Grouping

    def route(self, tuples: Sequence[Tuple]) -> Mapping[int, Sequence[int]]:
        """Return which tuples of the stream each task of the bolt gets, as their positions, in order.

        Raises TopologyError where a field that decides holds what cannot, or a custom grouping chooses wrong.
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
    """Return the tasks of other workers that some of these send to; tasks of no component send nowhere.

    Source: Storm's `workerOutboundTasks`.
    """
    bolts = {
        bolt
        for component in {topology.component_of(task).id for task in here if task in topology.tasks}
        for stream in topology.component(component).streams
        for bolt, _ in topology.targets_of(component, stream.name)
    }
    return frozenset(task for bolt in bolts for task in topology.tasks_of(bolt)).difference(here)


class Outgoing:
    """Everything that one task may send to.

    locality, loads: as in GroupingContext; they may know of more tasks than these.
    """

    def __init__(
        self,
        topology: Topology,
        task: int,
        locality: LocalitySource = nothing,
        loads: LoadSource = nothing,
    ) -> None:
        source = topology.component_of(task)
        self._targets: dict[str, list[Target]] = {}
        for stream in source.streams:
            targets = self._targets[stream.name] = []
            for bolt, subscription in topology.targets_of(source.id, stream.name):
                if subscription.grouping is not GroupingType.DIRECT:
                    context = GroupingContext(topology.tasks_of(bolt), task, locality, loads)
                    targets.append(Target(bolt, subscription, stream, _make(subscription, context, stream)))

    def route(self, stream: str, tuples: Sequence[Tuple]) -> dict[int, Sequence[int]]:
        """Return which tuples of a stream each task gets, as their positions, in order.

        A direct stream has none: its emitter has named the task. Raises TopologyError as Target.route does.
        """
        positions: dict[int, Sequence[int]] = {}
        for target in self._targets[stream]:
            positions.update(target.route(tuples))
        return positions

    def refresh(self) -> None:
        """Have every grouping look again at loads and distances; to be called about once a second."""
        for targets in self._targets.values():
            for target in targets:
                target.grouping.refresh()


def _make(subscription: Input, context: GroupingContext, stream: Stream) -> Grouping:
    if subscription.grouping is not GroupingType.CUSTOM:  # nor direct: its emitter routes that
        return _GROUPINGS[subscription.grouping](context)
    chooser = deepcopy(subscription.custom)
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
