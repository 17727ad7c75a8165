"""Which series there are, and what they add up to: bounded, complete, and never falling."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence

from tuplewire_service.messaging.reception import OTHER


class Names:
    """Says under which name each key is told; at most `limit` have their own.

    First come, first kept: a key keeps its name for as long as it is there. What ends leaves its place to a
    key that comes later, never to one that is told as `other` already.
    """

    def __init__(self, limit: int, always: Collection[str] = ()) -> None:
        """Begin without any. always: keys that have their own name beyond the limit."""
        self._limit = limit
        self._always = frozenset(always)
        self._own: set[str] = set()
        self._others: set[str] = set()

    def of(self, keys: Iterable[str]) -> dict[str, str]:
        """Return the name of each of the keys, which are all that there are now."""
        keys = list(keys)
        self._own.intersection_update(keys)
        self._others.intersection_update(keys)
        for key in keys:
            if not (key in self._always or key in self._own or key in self._others):
                (self._own if len(self._own) < self._limit else self._others).add(key)
        return {key: OTHER if key in self._others else key for key in keys}


class Totals:
    """Adds counts up by name while their sources come and go.

    A total does not fall while there is a source of its name, and that of `other` never does.
    """

    def __init__(self) -> None:
        self._last: dict[Hashable, tuple[str, Sequence[int]]] = {}
        self._ended: dict[str, list[int]] = {}

    def add_up(self, sources: Mapping[Hashable, tuple[str, Sequence[int]]]) -> dict[str, list[int]]:
        """Return the totals by name, of all sources that there are now (name and counts) and were before."""
        ended = self._ended
        for key in self._last.keys() - sources.keys():
            _add(ended, *self._last[key])
        self._last = dict(sources)
        names = {name for name, _ in sources.values()} | {OTHER}
        self._ended = {name: counts for name, counts in ended.items() if name in names}
        totals = {name: counts.copy() for name, counts in self._ended.items()}
        for name, counts in sources.values():
            _add(totals, name, counts)
        return totals


def _add(totals: dict[str, list[int]], name: str, counts: Sequence[int]) -> None:
    before = totals.get(name)
    totals[name] = list(counts) if before is None else [a + b for a, b in zip(before, counts, strict=True)]
