"""How the messages of a task are numbered by the workers that accepted them from programs. Pure.

A worker counts what is in a task's queue, and the count ends when the task moves. The count of the worker
that accepted a message from a program, its entry worker, stays with the message. Messages of one entry worker
to a task are consumed in that order wherever it moves. So a few of these numbers tell what has been read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

Vector = Mapping[int, int]
"""For an entry worker's number the entry sequence of its last message that was read."""
MOST_BEFORE = 100
"""So many entry workers of a task are remembered whose messages may come again, the latest ones."""

Span = tuple[int, int]
"""The first and the last of some sequences."""


@dataclass(frozen=True, slots=True)
class Runs:
    """Messages of a task that are not acknowledged, from the sequence `first` on.

    begin: the sequence after which the task's messages begin at this worker. runs: one after the other, how
    many messages there are, their entry worker's number, and the entry sequence of the first.
    """

    first: int
    begin: int
    runs: tuple[tuple[int, int, int], ...]

    def _numbered(self, last: int | None = None) -> Iterator[tuple[int, int, int, int]]:
        sequence = self.first
        for count, worker, entry in self.runs:
            if last is not None and sequence + count - 1 > last:
                if sequence <= last:
                    yield sequence, last - sequence + 1, worker, entry
                return
            yield sequence, count, worker, entry
            sequence += count

    def vector(self, last: int) -> dict[int, int]:
        """Return the last entry sequence of each entry worker among the messages up to a sequence."""
        found: dict[int, int] = {}
        for _, count, worker, entry in self._numbered(last):
            found[worker] = max(found.get(worker, 0), entry + count - 1)
        return found

    def spans(self, start: int, end: int | None, after: Vector, upto: Vector | None = None) -> list[Span]:
        """Return those messages that come after a sequence (up to an end), and were not read before.

        after: what was read. upto: of each entry worker the last message that is wanted; None: all of all.
        """
        spans: list[Span] = []
        for sequence, count, worker, entry in self._numbered(end):
            first = max(sequence, start + 1, sequence + after.get(worker, 0) + 1 - entry)
            last = sequence + count - 1
            if upto is not None:
                last = min(last, sequence + upto.get(worker, 0) - entry)
            if first > last:
                continue
            if spans and spans[-1][1] == first - 1:
                spans[-1] = spans[-1][0], last
            else:
                spans.append((first, last))
        return spans


def count(spans: Iterable[Span]) -> int:
    """Return how many messages there are."""
    return sum(last - first + 1 for first, last in spans)


def merged(one: Vector, other: Vector) -> dict[int, int]:
    """Return what was read by one or the other."""
    found = dict(one)
    for worker, entry in other.items():
        found[worker] = max(found.get(worker, 0), entry)
    return found


def still_to_come(before: Vector, entries: Vector) -> dict[int, int]:
    """Return what of `before` may still come, once the messages of `entries` have come.

    Later messages of an entry worker come after its earlier ones.
    """
    left = {worker: entry for worker, entry in before.items() if entries.get(worker, 0) < entry}
    return dict(list(left.items())[-MOST_BEFORE:])
