"""Names and totals of series. Their number is bounded, no count is missing, and no total decreases."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence

from tuplewire_service.messaging.reception import OTHER


class Names:
    """Assigns series names to keys. The first `limit` keys have their own name, the others are `other`.

    A key keeps its name while it exists. The place of a removed key goes to a new key, never to one that is
    already counted as `other`.
    """

    def __init__(self, limit: int, always: Collection[str] = ()) -> None:
        """Start without keys. The keys in `always` have their own name regardless of the limit."""
        self._limit = limit
        self._always = frozenset(always)
        self._own: set[str] = set()
        self._others: set[str] = set()

    def of(self, keys: Iterable[str]) -> dict[str, str]:
        """Return the name of each key. The argument must contain all current keys."""
        keys = list(keys)
        self._own.intersection_update(keys)
        self._others.intersection_update(keys)
        for key in keys:
            if not (key in self._always or key in self._own or key in self._others):
                (self._own if len(self._own) < self._limit else self._others).add(key)
        return {key: OTHER if key in self._others else key for key in keys}


class Totals:
    """Adds up counts by name. A total includes removed sources, so it does not decrease.

    It starts again if its name was without a source. The total of `other` always remains.
    """

    def __init__(self) -> None:
        self._last: dict[Hashable, tuple[str, Sequence[int]]] = {}
        self._ended: dict[str, list[int]] = {}

    def add_up(self, sources: Mapping[Hashable, tuple[str, Sequence[int]]]) -> dict[str, list[int]]:
        """Return the totals by name. `sources` has the name and the counts of each current source."""
        ended = self._ended
        for key in self._last.keys() - sources.keys():
            _add(ended, *self._last[key])
        self._last = dict(sources)
        names = {name for name, _ in sources.values()} | {OTHER}
        self._ended = {name: counts for name, counts in ended.items() if name in names}  # bounded
        totals = {name: counts.copy() for name, counts in self._ended.items()}
        for name, counts in sources.values():
            _add(totals, name, counts)
        return totals


def _add(totals: dict[str, list[int]], name: str, counts: Sequence[int]) -> None:
    before = totals.get(name)
    totals[name] = list(counts) if before is None else [a + b for a, b in zip(before, counts, strict=True)]
