"""Groupings: which task of a component a message goes to. Source: Storm's stream groupings.

A grouping is asked for a whole column at a time and answers with a column of task ids, to go straight
into `TaskMessageBatch.from_columns`.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import cycle, islice

from tuplewire.errors import ConfigError
from tuplewire.group import check_task

Field = str | bytes | int | None
Key = Field | tuple[Field, ...]
"""The value of a field, or the values of several."""

_REMEMBERED_KEYS = 65_536


class Grouping(ABC):
    """A choice among the tasks of one component."""

    def __init__(self, tasks: Iterable[int]) -> None:
        self.tasks = tuple(map(check_task, tasks))
        if not self.tasks:
            raise ConfigError("a grouping needs at least one task to choose from")

    @abstractmethod
    def choose(self, keys: Sequence[Key]) -> list[int]:
        """Return a task for each message, given the values of the grouping's fields in each."""


class _Shuffle(Grouping):
    def __init__(self, tasks: Iterable[int], start: int) -> None:
        super().__init__(tasks)
        self._next = start % len(self.tasks)

    def choose(self, keys: Sequence[Key]) -> list[int]:
        count = len(keys)
        begin, self._next = self._next, (self._next + count) % len(self.tasks)
        return list(islice(cycle(self.tasks), begin, begin + count))


class _Fields(Grouping):
    def __init__(self, tasks: Iterable[int]) -> None:
        super().__init__(tasks)
        self._task_of = lru_cache(_REMEMBERED_KEYS)(self._hashed)

    def choose(self, keys: Sequence[Key]) -> list[int]:
        return list(map(self._task_of, keys))

    def _hashed(self, key: Key) -> int:
        return self.tasks[stable_hash(key) % len(self.tasks)]


def shuffle(tasks: Iterable[int], start: int = 0) -> Grouping:
    """Return the shuffle grouping: the tasks in turn, so that each gets an equal share.

    start: where the turn begins; senders that start at different places spread evenly from the outset.
    """
    return _Shuffle(tasks, start)


def fields(tasks: Iterable[int]) -> Grouping:
    """Return the fields grouping: equal keys go to one task, whichever process asks.

    It depends on the key and the order of the tasks alone. An object that has one remembers the tasks of
    the keys seen last.
    """
    return _Fields(tasks)


def stable_hash(key: Key) -> int:
    """Return 64 bits that are the same in every process and release, unlike Python's hash().

    Keys of different types differ (1 and "1"), as do tuples that only look alike once joined.
    """
    return int.from_bytes(hashlib.blake2b(_canonical(key), digest_size=8).digest(), "big")


def _canonical(key: Key) -> bytes:
    if isinstance(key, str):
        return b"s" + key.encode("utf-8", "surrogatepass")
    if isinstance(key, bytes):
        return b"b" + key
    if key is None:
        return b"n"
    if isinstance(key, int) and not isinstance(key, bool):
        return b"i%d" % key
    if isinstance(key, tuple):
        parts = list(map(_canonical, key))
        return b"t" + b"".join(b"%d:%b" % (len(part), part) for part in parts)
    kind = type(key).__name__
    raise ConfigError(f"a grouping's key is str, bytes, int, None or a tuple of these, not {kind}")
