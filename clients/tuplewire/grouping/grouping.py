"""Groupings: which tasks of a component a message goes to. Source: Storm's stream groupings.

A grouping is asked for a whole column at a time. One sending task has one object of each of its groupings,
and asks it from one thread. `load_aware.py` has the one that looks at loads.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction
from functools import lru_cache
from typing import Any, Protocol

from tuplewire.errors import ConfigError, TopologyError
from tuplewire.values.group import check_task

_REMEMBERED_KEYS = 65_536


class Locality(IntEnum):
    """How near a task is to the one that sends; nearer is less. Source: Storm's `Scope`."""

    WORKER = 0
    HOST = 1
    RACK = 2
    EVERYTHING = 3


LocalitySource = Callable[[], Mapping[int, Locality]]
LoadSource = Callable[[], Mapping[int, float]]


def nothing() -> Mapping[int, Any]:
    """Know of no task; stands for both sources where nobody can say."""
    return {}


@dataclass(frozen=True, slots=True)
class GroupingContext:
    """What a grouping may know. Source: Storm's `WorkerTopologyContext` and `LoadMapping`.

    tasks: those to choose from. source: the task that sends.
    locality: returns how near the tasks are; one that it leaves out is as far as can be.
    loads: returns the load, from 0 to 1, that each task last reported; one left out is not heard of.
    Both are called when a grouping is made, and by its refresh().
    """

    tasks: Sequence[int]
    source: int
    locality: LocalitySource = nothing
    loads: LoadSource = nothing


class Grouping(ABC):
    """A choice among the tasks of one component."""

    def __init__(self, tasks: Iterable[int]) -> None:
        self.tasks = tuple(map(check_task, tasks))
        if not self.tasks:
            raise ConfigError("a grouping needs at least one task to choose from")

    @abstractmethod
    def route(self, keys: Sequence[Any]) -> Mapping[int, Sequence[int]]:
        """Return which messages each task gets, as their positions in the column, in order.

        keys: what the grouping looks at in each message; only their number counts to most groupings.
        """

    def refresh(self) -> None:  # noqa: B027 - most groupings look at neither
        """Look again at loads and localities; to be called about once a second."""


class SingleGrouping(Grouping):
    """A grouping that sends each message to one task."""

    @abstractmethod
    def choose(self, keys: Sequence[Any]) -> list[int]:
        """Return a task for each message."""

    def route(self, keys: Sequence[Any]) -> Mapping[int, Sequence[int]]:
        positions: defaultdict[int, list[int]] = defaultdict(list)
        for position, task in enumerate(self.choose(keys)):
            positions[task].append(position)
        return positions


class RingGrouping(SingleGrouping):
    """Gives out tasks in turn, around a ring in which a task may stand more than once."""

    def __init__(self, tasks: Iterable[int], start: int = 0) -> None:
        super().__init__(tasks)
        self._ring = list(self.tasks)
        self._next = start % len(self._ring)

    def choose(self, keys: Sequence[Any]) -> list[int]:
        """Return a task for each message; the turn goes on from one column to the next."""
        ring, begin, end = self._ring, self._next, self._next + len(keys)
        self._next = end % len(ring)
        if end <= len(ring):
            return ring[begin:end]
        turned = ring[begin:] + ring[:begin]
        rounds, rest = divmod(len(keys), len(ring))
        return turned * rounds + turned[:rest]

    def _turn_to(self, ring: list[int]) -> None:
        """Go on with another ring, about as far around it."""
        self._next = self._next * len(ring) // len(self._ring)
        self._ring = ring


class LocalOrShuffle(RingGrouping):
    """The tasks of the sender's own worker in turn; all in turn where it has none."""

    def __init__(self, context: GroupingContext) -> None:
        super().__init__(context.tasks, context.source)
        self._context = context
        self.refresh()

    def refresh(self) -> None:
        near = self._context.locality()
        local = [task for task in self.tasks if near.get(task) is Locality.WORKER]
        self._turn_to(local or list(self.tasks))


@contextmanager
def _keys_only(keys: Iterable[Key]) -> Iterator[None]:
    """Name what is no key, and cannot even be looked up."""
    try:
        yield
    except TypeError:
        for key in keys:
            stable_hash(key)
        raise


class Fields(SingleGrouping):
    """Equal keys, the values of the grouping's fields, go to one task, whichever process asks.

    It depends on the key and the order of the tasks alone. An object remembers the tasks of the keys that it
    saw last.
    """

    def __init__(self, tasks: Iterable[int]) -> None:
        super().__init__(tasks)
        self._task_of = lru_cache(_REMEMBERED_KEYS)(self._hashed)

    def choose(self, keys: Sequence[Key]) -> list[int]:
        with _keys_only(keys):
            return list(map(self._task_of, keys))

    def _hashed(self, key: Key) -> int:
        return self.tasks[stable_hash(key) % len(self.tasks)]


class PartialKey(SingleGrouping):
    """Equal keys go to one of two tasks, whichever was sent less so far: a frequent key is shared by two.

    Which two it is depends on the key and the order of the tasks alone. Source: "The Power of Both Choices",
    Nasir et al. 2015, by way of Storm's `PartialKeyGrouping`.
    """

    def __init__(self, tasks: Iterable[int]) -> None:
        super().__init__(tasks)
        self._sent = dict.fromkeys(self.tasks, 0)
        self._pair_of = lru_cache(_REMEMBERED_KEYS)(self._hashed)

    def choose(self, keys: Sequence[Key]) -> list[int]:
        sent = self._sent
        chosen = []
        with _keys_only(keys):
            for key in keys:
                one, other = self._pair_of(key)
                task = one if sent[one] <= sent[other] else other
                sent[task] += 1
                chosen.append(task)
        return chosen

    def _hashed(self, key: Key) -> tuple[int, int]:
        count = len(self.tasks)
        further, first = divmod(stable_hash(key), count)
        second = first if count == 1 else (first + 1 + further % (count - 1)) % count
        return self.tasks[first], self.tasks[second]


class All(Grouping):
    """Every message goes to every task."""

    def route(self, keys: Sequence[Any]) -> Mapping[int, Sequence[int]]:
        return dict.fromkeys(self.tasks, range(len(keys))) if keys else {}


class Global(SingleGrouping):
    """Every message goes to one task, that of the lowest id."""

    def choose(self, keys: Sequence[Any]) -> list[int]:
        return [min(self.tasks)] * len(keys)


class DeclaredStream(Protocol):
    """What a grouping reads of a stream: its fields in order, and its name."""

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields."""

    @property
    def name(self) -> str:
        """The name of the stream, unique in its component."""

    def positions(self, fields: Iterable[str], /) -> tuple[int, ...]:
        """Return where fields are among the values of a tuple; TopologyError for one that is not declared."""


class CustomStreamGrouping(ABC):
    """A grouping of the user's own. Source: Storm's `CustomStreamGrouping`. Each sending task gets a copy."""

    def prepare(self, context: GroupingContext, stream: DeclaredStream) -> None:  # noqa: B027 - a hook
        """Learn what there is to choose from, before the first choice; by default nothing happens."""

    @abstractmethod
    def choose_tasks(self, values: tuple[Any, ...]) -> Iterable[int]:
        """Return the tasks that get a tuple of these values: any number of those in the context, or none."""


class Custom(Grouping):
    """Asks the user's object; raises TopologyError when that chooses what is no task of the component."""

    def __init__(self, context: GroupingContext, chooser: CustomStreamGrouping) -> None:
        super().__init__(context.tasks)
        self._chooser = chooser
        self._known = frozenset(self.tasks)

    def route(self, keys: Sequence[Any]) -> Mapping[int, Sequence[int]]:
        """Return which messages each task gets; keys: all the values of each."""
        positions: defaultdict[int, list[int]] = defaultdict(list)
        for position, values in enumerate(keys):
            for task in self._chooser.choose_tasks(values):
                if task not in self._known:
                    raise TopologyError(
                        f"{type(self._chooser).__name__} chose task {task!r}, which is none of {self.tasks}"
                    )
                positions[task].append(position)
        return positions


shuffle = RingGrouping
"""The shuffle grouping: the tasks in turn, so that each gets an equal share.

start: where the turn begins; senders that start at different places spread evenly from the outset.
"""

fields = Fields
"""The fields grouping: equal keys go to one task, whichever process asks."""


# --- a hash that every process and release agrees on, unlike Python's hash() -------------------------

Field = str | bytes | float | Decimal | Fraction | None
Key = Field | tuple[Field, ...]
"""The value of a field, or the values of several. Numbers are of any type, numpy's too."""


def stable_hash(key: Key) -> int:
    """Return 64 bits that are the same in every process and release, unlike Python's hash().

    Keys that are equal have equal hashes, as with Python's: 1, 1.0 and True are one key. Others differ
    (1 and "1"), as do tuples that only look alike once joined. Raises ConfigError for what is no key.
    """
    return int.from_bytes(hashlib.blake2b(_canonical(key), digest_size=8).digest(), "big")


def _canonical(key: Any) -> bytes:
    if isinstance(key, str):
        return b"s" + key.encode("utf-8", "surrogatepass")
    if isinstance(key, bytes):
        return b"b" + key
    if key is None:
        return b"n"
    if isinstance(key, int):
        return b"i%d" % key
    if isinstance(key, tuple):
        parts = list(map(_canonical, key))
        return b"t" + b"".join(b"%d:%b" % (len(part), part) for part in parts)
    if isinstance(key, float | Decimal | Fraction):
        return _number(key)
    if hasattr(key, "dtype") and getattr(key, "ndim", None) == 0:  # numpy's, which nobody need have
        return _canonical(key.item())
    kind = type(key).__name__
    raise ConfigError(f"a grouping's key is str, bytes, a number, None or a tuple of these, not {kind}")


def _number(key: float | Decimal | Fraction) -> bytes:
    try:
        numerator, denominator = key.as_integer_ratio()
    except (OverflowError, ValueError):  # infinite, or not a number
        return b"f%b" % str(float(key)).encode()
    return b"i%d" % numerator if denominator == 1 else b"q%d/%d" % (numerator, denominator)
