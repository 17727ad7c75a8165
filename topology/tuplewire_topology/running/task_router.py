"""The routes of a task's tuples: the bolts that subscribe to each of its streams, and their groupings.

Only topologies have the groupings defined here. Used by executor.py. Owns the groupings of the task. Not
thread-safe. Called on the executor's thread. Design: docs/design/topologies.md (routing in columns).
Source: Storm's `GrouperFactory`, `Task` and stream groupings.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Any

from tuplewire.errors import ConfigError, TopologyError
from tuplewire.grouping.grouping import (
    MAX_CACHED_KEYS,
    FieldsGrouping,
    Grouping,
    GroupingContext,
    Key,
    LoadSource,
    Locality,
    LocalitySource,
    RingGrouping,
    SingleGrouping,
    explain_unhashable,
    stable_hash,
)
from tuplewire.grouping.load_aware import LoadAwareShuffle
from tuplewire_topology.authoring.description import (
    KEYED_GROUPINGS,
    CustomStreamGrouping,
    GroupingType,
    Input,
    Topology,
)
from tuplewire_topology.authoring.tuples import Stream, Tuple


class LocalOrShuffleGrouping(RingGrouping):
    """A round robin over the tasks of the sender's worker, or over all tasks if that worker owns none."""

    def __init__(self, context: GroupingContext) -> None:
        super().__init__(context.tasks, context.source)
        self._context = context
        self.refresh()

    def refresh(self) -> None:
        locality_by_task = self._context.locality()
        local = [task for task in self.tasks if locality_by_task.get(task) is Locality.WORKER]
        self.turn_to(local or list(self.tasks))


class PartialKeyGrouping(SingleGrouping):
    """A grouping that sends equal keys to one of two tasks: the task that has received fewer messages so far.

    Two tasks therefore share a frequent key. They depend only on the key and the order of the tasks. Source:
    "The Power of Both Choices", Nasir et al. 2015, as in Storm's `PartialKeyGrouping`.
    """

    def __init__(self, tasks: Iterable[int]) -> None:
        super().__init__(tasks)
        self._sent = dict.fromkeys(self.tasks, 0)
        self._candidates = lru_cache(MAX_CACHED_KEYS)(self._compute_candidates)

    def choose(self, keys: Sequence[Key]) -> list[int]:
        sent = self._sent
        chosen = []
        with explain_unhashable(keys):
            for key in keys:
                first, second = self._candidates(key)
                task = first if sent[first] <= sent[second] else second
                sent[task] += 1
                chosen.append(task)
        return chosen

    def _compute_candidates(self, key: Key) -> tuple[int, int]:
        count = len(self.tasks)
        # One hash gives both choices: the remainder the first, the quotient a different second one.
        further, first = divmod(stable_hash(key), count)
        second = first if count == 1 else (first + 1 + further % (count - 1)) % count
        return self.tasks[first], self.tasks[second]


class AllGrouping(Grouping):
    """A grouping that sends every message to all tasks."""

    def route(self, keys: Sequence[Any]) -> Mapping[int, Sequence[int]]:
        return dict.fromkeys(self.tasks, range(len(keys))) if keys else {}


class GlobalGrouping(SingleGrouping):
    """A grouping that sends every message to the task with the lowest id."""

    def choose(self, keys: Sequence[Any]) -> list[int]:
        return [min(self.tasks)] * len(keys)


class CustomGrouping(Grouping):
    """A grouping that calls a user-defined one. Raises TopologyError if it returns an unknown task."""

    def __init__(self, context: GroupingContext, chooser: CustomStreamGrouping) -> None:
        super().__init__(context.tasks)
        self._custom_grouping = chooser
        self._known = frozenset(self.tasks)

    def route(self, keys: Sequence[Any]) -> Mapping[int, Sequence[int]]:
        """Return the messages for each task. `keys` has all values of each message."""
        positions: defaultdict[int, list[int]] = defaultdict(list)
        for position, values in enumerate(keys):
            for task in self._custom_grouping.choose_tasks(values):
                if task not in self._known:
                    name = type(self._custom_grouping).__name__
                    raise TopologyError(f"{name} chose task {task!r}; choose from {self.tasks}")
                positions[task].append(position)
        return positions


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A bolt that subscribes to a stream, with the grouping of its subscription."""

    component: str
    subscription: Input
    stream: Stream
    grouping: Grouping

    def route(self, tuples: Sequence[Tuple]) -> Mapping[int, Sequence[int]]:
        """Return the positions of the tuples by task. Raises TopologyError for an invalid key or result."""
        try:
            return self.grouping.route(self._keys(tuples))
        except ConfigError as error:
            raise TopologyError(f"{self.component!r} subscribes to {self.subscription}: {error}") from error

    def _keys(self, tuples: Sequence[Tuple]) -> Sequence[Any]:
        if self.subscription.grouping in KEYED_GROUPINGS:
            key_of = itemgetter(*self.stream.positions(self.subscription.fields))
            return [key_of(message.values) for message in tuples]
        if self.subscription.grouping is GroupingType.CUSTOM:
            return [message.values for message in tuples]
        return tuples


def outbound_tasks(topology: Topology, local_tasks: Collection[int]) -> frozenset[int]:
    """Return the tasks elsewhere that `local_tasks` send to. Source: Storm's `workerOutboundTasks`."""
    bolts = {
        bolt
        for component in {topology.component_of(task).id for task in local_tasks if task in topology.tasks}
        for stream in topology.component(component).streams
        for bolt, _ in topology.subscribers_of(component, stream.name)
    }
    return frozenset(task for bolt in bolts for task in topology.tasks_of(bolt)).difference(local_tasks)


class TaskRouter:
    """Routes the tuples of one task. `locality` and `loads` may include more tasks; see GroupingContext."""

    def __init__(
        self, topology: Topology, task: int, locality: LocalitySource = dict, loads: LoadSource = dict
    ) -> None:
        source = topology.component_of(task)
        self._subscribers: dict[str, list[Subscriber]] = {}
        for stream in source.streams:
            bolts = self._subscribers[stream.name] = []
            for bolt, subscription in topology.subscribers_of(source.id, stream.name):
                if subscription.grouping is not GroupingType.DIRECT:  # the emitter names the task
                    context = GroupingContext(topology.tasks_of(bolt), task, locality, loads)
                    bolts.append(Subscriber(bolt, subscription, stream, _make(subscription, context, stream)))

    def route(self, stream: str, tuples: Sequence[Tuple]) -> dict[int, Sequence[int]]:
        """Return, by task, the positions of its tuples, in order; empty for a direct stream."""
        positions: dict[int, Sequence[int]] = {}
        for subscriber in self._subscribers[stream]:
            positions.update(subscriber.route(tuples))
        return positions

    def refresh(self) -> None:
        """Have every grouping read loads and distances again. Call this about once a second."""
        for subscribers in self._subscribers.values():
            for subscriber in subscribers:
                subscriber.grouping.refresh()


def _make(subscription: Input, context: GroupingContext, stream: Stream) -> Grouping:
    if subscription.custom_grouping is None:
        return _GROUPINGS[subscription.grouping](context)
    chooser = deepcopy(subscription.custom_grouping)  # each task has its own state
    chooser.prepare(context, stream)
    return CustomGrouping(context, chooser)


_GROUPINGS: Mapping[GroupingType, Callable[[GroupingContext], Grouping]] = {
    GroupingType.SHUFFLE: lambda context: RingGrouping(context.tasks, context.source),
    GroupingType.NONE: lambda context: RingGrouping(context.tasks, context.source),
    GroupingType.FIELDS: lambda context: FieldsGrouping(context.tasks),
    GroupingType.ALL: lambda context: AllGrouping(context.tasks),
    GroupingType.GLOBAL: lambda context: GlobalGrouping(context.tasks),
    GroupingType.LOCAL_OR_SHUFFLE: LocalOrShuffleGrouping,
    GroupingType.PARTIAL_KEY: lambda context: PartialKeyGrouping(context.tasks),
    GroupingType.LOAD_AWARE_SHUFFLE: LoadAwareShuffle,
}
