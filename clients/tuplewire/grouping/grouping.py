"""Groupings: the choice of tasks of a component for each message.

A grouping chooses tasks for a whole column of messages at a time. Used by topologies and spark/row_router.py.
Each sending task has an object for each of its groupings. Owns the positions and counts of its choices.
Not thread-safe. Design: docs/design/topologies.md. Source: Storm's stream groupings.
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
from typing import Any

from tuplewire.errors import ConfigError
from tuplewire.values.group import check_task

MAX_CACHED_KEYS = 65_536
"""The maximum number of recent keys for which an object caches the task."""


class Locality(IntEnum):
    """The distance of a task from the sending task; lower is nearer. Source: Storm's `Scope`."""

    WORKER = 0
    HOST = 1
    RACK = 2
    EVERYTHING = 3


LocalitySource = Callable[[], Mapping[int, Locality]]
LoadSource = Callable[[], Mapping[int, float]]


@dataclass(frozen=True, slots=True)
class GroupingContext:
    """The inputs of a grouping. Source: Storm's `WorkerTopologyContext` and `LoadMapping`.

    Attributes:
        tasks: The tasks to choose from.
        source: The sending task.
        locality: Returns the distance of each task. A missing task has the maximum distance.
        loads: Returns the last reported load of each task, from 0 to 1. A missing task has reported none.

    A grouping calls both functions at its creation and in refresh().
    """

    tasks: Sequence[int]
    source: int
    locality: LocalitySource = dict
    loads: LoadSource = dict


class Grouping(ABC):
    """A choice among the tasks of one component."""

    def __init__(self, tasks: Iterable[int]) -> None:
        self.tasks = tuple(map(check_task, tasks))
        if not self.tasks:
            raise ConfigError("a grouping needs at least one task to choose from")

    @abstractmethod
    def route(self, keys: Sequence[Any]) -> Mapping[int, Sequence[int]]:
        """Return the messages for each task, as ordered positions in the column.

        `keys` has a value for each message. Most groupings use only the number of keys.
        """

    def refresh(self) -> None:  # noqa: B027 - most groupings use no loads or localities
        """Read the current loads and localities. Call this about once a second."""


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
    """A grouping that chooses tasks round robin from a ring, which may contain a task several times."""

    def __init__(self, tasks: Iterable[int], start: int = 0) -> None:
        super().__init__(tasks)
        self._ring = list(self.tasks)
        self._next = start % len(self._ring)

    def choose(self, keys: Sequence[Any]) -> list[int]:
        """Return a task for each message. The next column continues after the last task."""
        ring, begin, end = self._ring, self._next, self._next + len(keys)
        self._next = end % len(ring)
        if end <= len(ring):
            return ring[begin:end]
        turned = ring[begin:] + ring[:begin]
        rounds, rest = divmod(len(keys), len(ring))
        return turned * rounds + turned[:rest]

    def turn_to(self, ring: list[int]) -> None:
        """Replace the ring, and continue at about the same relative position."""
        self._next = self._next * len(ring) // len(self._ring)
        self._ring = ring


@contextmanager
def explain_unhashable(keys: Iterable[Key]) -> Iterator[None]:
    """Raise ConfigError with the type of the value if a key cannot be hashed."""
    try:
        yield
    except TypeError:
        for key in keys:
            stable_hash(key)
        raise


class FieldsGrouping(SingleGrouping):
    """A grouping that sends equal keys (values of fields) to the same task, from all processes.

    The task depends only on the key and the order of the tasks. An object caches the tasks of recent keys.
    """

    def __init__(self, tasks: Iterable[int]) -> None:
        super().__init__(tasks)
        self._task_of = lru_cache(MAX_CACHED_KEYS)(self._pick_task)

    def choose(self, keys: Sequence[Key]) -> list[int]:
        with explain_unhashable(keys):
            return list(map(self._task_of, keys))

    def _pick_task(self, key: Key) -> int:
        return self.tasks[stable_hash(key) % len(self.tasks)]


shuffle = RingGrouping
"""The shuffle grouping: round robin, so that each task gets an equal share.

`start` is the first position. With different start positions, several senders spread evenly from the start.
"""

fields = FieldsGrouping
"""The fields grouping: equal keys are sent to the same task, from all processes."""


FieldValue = str | bytes | float | Decimal | Fraction | None
Key = FieldValue | tuple[FieldValue, ...]
"""The value of a field, or of several fields. Numbers may have any type, including numpy's."""


def stable_hash(key: Key) -> int:
    """Return a hash of 64 bits that is the same in every process and release, unlike Python's hash().

    Equal keys have equal hashes, as in Python: 1, 1.0 and True are one key. Keys such as 1 and "1" differ,
    and so do tuples with the same concatenated text. Raises ConfigError for a value of another type.
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
    if hasattr(key, "dtype") and getattr(key, "ndim", None) == 0:  # a numpy scalar; numpy is optional
        return _canonical(key.item())
    kind = type(key).__name__
    raise ConfigError(f"a grouping's key is str, bytes, a number, None or a tuple of these, not {kind}")


def _number(key: float | Decimal | Fraction) -> bytes:
    try:
        numerator, denominator = key.as_integer_ratio()
    except (OverflowError, ValueError):  # infinity or NaN
        return b"f%b" % str(float(key)).encode()
    return b"i%d" % numerator if denominator == 1 else b"q%d/%d" % (numerator, denominator)
