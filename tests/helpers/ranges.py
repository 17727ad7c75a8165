"""A set of whole numbers, stored as ranges: a million consecutive numbers take as much memory as one."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

Range = tuple[int, int]
"""The numbers from the first value up to, but not including, the second."""


class Ranges:
    """Numbers from 0, in ranges that neither overlap nor touch. Adding at the end takes constant time."""

    __slots__ = ("_starts", "_stops", "size")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        self.size = 0
        """The number of elements."""

    def __iter__(self) -> Iterator[Range]:
        return iter(zip(self._starts, self._stops, strict=True))

    def __repr__(self) -> str:
        return f"<Ranges {list(self)}>"

    @property
    def stop(self) -> int:
        """One more than the largest number, or 0 if the set is empty."""
        return self._stops[-1] if self._stops else 0

    def add(self, first: int, stop: int) -> list[Range]:
        """Add the numbers from `first` up to `stop`, at least one; return the ranges already present."""
        self.size += stop - first
        starts, stops = self._starts, self._stops
        if not stops or first > stops[-1]:
            starts.append(first)
            stops.append(stop)
            return []
        low = bisect_left(stops, first)
        high = bisect_right(starts, stop)
        known = list(self.within(first, stop))
        self.size -= sum(end - begin for begin, end in known)
        if low < high:
            first, stop = min(first, starts[low]), max(stop, stops[high - 1])
        starts[low:high] = [first]
        stops[low:high] = [stop]
        return known

    def within(self, first: int, stop: int) -> Iterator[Range]:
        """Return the ranges from `first` up to `stop` that are in the set, in order."""
        low = bisect_right(self._stops, first)
        high = bisect_left(self._starts, stop)
        for begin, end in zip(self._starts[low:high], self._stops[low:high], strict=True):
            yield max(first, begin), min(stop, end)

    def missing(self, first: int, stop: int) -> Iterator[Range]:
        """Return the ranges from `first` up to `stop` that are not in the set, in order."""
        for begin, end in self.within(first, stop):
            if first < begin:
                yield first, begin
            first = end
        if first < stop:
            yield first, stop
