"""The groupings that only topologies have. Used by running/outgoing.py.

Each sending task has an object for each of its groupings. Not thread-safe.
Design: docs/design/topologies.md. Source: Storm's stream groupings.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

from tuplewire.errors import TopologyError
from tuplewire.grouping.grouping import (
    REMEMBERED_KEYS,
    Grouping,
    GroupingContext,
    Key,
    Locality,
    RingGrouping,
    SingleGrouping,
    keys_only,
    stable_hash,
)


class LocalOrShuffle(RingGrouping):
    """A round robin over the tasks of the sender's worker, or over all tasks if that worker owns none."""

    def __init__(self, context: GroupingContext) -> None:
        super().__init__(context.tasks, context.source)
        self._context = context
        self.refresh()

    def refresh(self) -> None:
        near = self._context.locality()
        local = [task for task in self.tasks if near.get(task) is Locality.WORKER]
        self.turn_to(local or list(self.tasks))


class PartialKey(SingleGrouping):
    """A grouping that sends equal keys to one of two tasks: the task that has received fewer messages so far.

    Two tasks therefore share a frequent key. They depend only on the key and the order of the tasks. Source:
    "The Power of Both Choices", Nasir et al. 2015, as in Storm's `PartialKeyGrouping`.
    """

    def __init__(self, tasks: Iterable[int]) -> None:
        super().__init__(tasks)
        self._sent = dict.fromkeys(self.tasks, 0)
        self._pair_of = lru_cache(REMEMBERED_KEYS)(self._hashed)

    def choose(self, keys: Sequence[Key]) -> list[int]:
        sent = self._sent
        chosen = []
        with keys_only(keys):
            for key in keys:
                one, other = self._pair_of(key)
                task = one if sent[one] <= sent[other] else other
                sent[task] += 1
                chosen.append(task)
        return chosen

    def _hashed(self, key: Key) -> tuple[int, int]:
        count = len(self.tasks)
        # One hash gives both choices: the remainder the first, the quotient a different second one.
        further, first = divmod(stable_hash(key), count)
        second = first if count == 1 else (first + 1 + further % (count - 1)) % count
        return self.tasks[first], self.tasks[second]


class All(Grouping):
    """A grouping that sends every message to all tasks."""

    def route(self, keys: Sequence[Any]) -> Mapping[int, Sequence[int]]:
        return dict.fromkeys(self.tasks, range(len(keys))) if keys else {}


class Global(SingleGrouping):
    """A grouping that sends every message to the task with the lowest id."""

    def choose(self, keys: Sequence[Any]) -> list[int]:
        return [min(self.tasks)] * len(keys)


class DeclaredStream(Protocol):
    """The part of a stream that a grouping reads: its fields in order, and its name."""

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields."""

    @property
    def name(self) -> str:
        """The name of the stream, unique in its component."""

    def positions(self, fields: Iterable[str], /) -> tuple[int, ...]:
        """Return the positions of fields in a tuple. Raise TopologyError for an undeclared field."""


class CustomStreamGrouping(ABC):
    """A user-defined grouping. Each sending task gets a copy. Source: Storm's `CustomStreamGrouping`."""

    def prepare(self, context: GroupingContext, stream: DeclaredStream) -> None:  # noqa: B027 - a hook
        """Receive the tasks and the stream before the first choice. The default does nothing."""

    @abstractmethod
    def choose_tasks(self, values: tuple[Any, ...]) -> Iterable[int]:
        """Return the tasks that get a tuple with these values: any number of the context's tasks, or none."""


class Custom(Grouping):
    """A grouping that calls a user-defined one. Raises TopologyError if it returns an unknown task."""

    def __init__(self, context: GroupingContext, chooser: CustomStreamGrouping) -> None:
        super().__init__(context.tasks)
        self._chooser = chooser
        self._known = frozenset(self.tasks)

    def route(self, keys: Sequence[Any]) -> Mapping[int, Sequence[int]]:
        """Return the messages for each task. `keys` has all values of each message."""
        positions: defaultdict[int, list[int]] = defaultdict(list)
        for position, values in enumerate(keys):
            for task in self._chooser.choose_tasks(values):
                if task not in self._known:
                    raise TopologyError(
                        f"{type(self._chooser).__name__} chose task {task!r}, which is none of {self.tasks}"
                    )
                positions[task].append(position)
        return positions
