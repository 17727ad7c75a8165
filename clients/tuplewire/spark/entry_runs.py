"""The numbers of a task's messages at the workers that accepted them from programs; pure functions.

A worker numbers the messages in a task's queue, and that numbering ends when the task moves. The number given
by the worker that accepted a message from a program, its entry worker, stays with the message. Messages of
one entry worker to a task are consumed in that order, on every worker. So the last number of each entry
worker describes all messages that were read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

LastSequences = Mapping[int, int]
"""By the number of an entry worker: the entry sequence of its last message that was read."""
MAX_REMEMBERED_WORKERS = 100
"""The maximum number of remembered entry workers of a task with messages that may be redelivered."""

SequenceRange = tuple[int, int]
"""The first and the last of consecutive sequences."""


@dataclass(frozen=True, slots=True)
class EntryRuns:
    """Unacknowledged messages of a task, from the sequence `first_sequence` on.

    start: the sequence after which the task's messages start at this worker. runs: in order, the number of
    messages, their entry worker's number, and the entry sequence of the first message.
    """

    first_sequence: int
    start: int
    runs: tuple[tuple[int, int, int], ...]

    def _iter_runs(self, last: int) -> Iterator[tuple[int, int, int, int]]:
        sequence = self.first_sequence
        for count, worker, entry_sequence in self.runs:
            if sequence <= last:
                yield sequence, min(count, last - sequence + 1), worker, entry_sequence
            sequence += count

    def last_sequences(self, last: int) -> dict[int, int]:
        """Return the last entry sequence of each entry worker among the messages up to a sequence."""
        found: dict[int, int] = {}
        for _, count, worker, entry_sequence in self._iter_runs(last):
            found[worker] = max(found.get(worker, 0), entry_sequence + count - 1)
        return found

    def unread_ranges(
        self, start: int, end: int, after: LastSequences, last_wanted: LastSequences | None = None
    ) -> list[SequenceRange]:
        """Return the messages after a sequence, up to an end, that were not read before.

        after: the messages that were read. last_wanted: the last message of each entry worker; None: all.
        """
        found: list[SequenceRange] = []
        for sequence, count, worker, entry_sequence in self._iter_runs(end):
            # In this run, `sequence - entry_sequence` converts entry sequences to sequences at this worker.
            first = max(sequence, start + 1, sequence + after.get(worker, 0) + 1 - entry_sequence)
            last = sequence + count - 1
            if last_wanted is not None:
                last = min(last, sequence + last_wanted.get(worker, 0) - entry_sequence)
            if first > last:
                continue
            if found and found[-1][1] == first - 1:
                found[-1] = found[-1][0], last
            else:
                found.append((first, last))
        return found


def count_messages(ranges: Iterable[SequenceRange]) -> int:
    """Return the number of messages in the ranges."""
    return sum(last - first + 1 for first, last in ranges)


def merge(one: LastSequences, other: LastSequences) -> dict[int, int]:
    """Return the last sequences of all messages in `one` or `other`."""
    return {worker: max(one.get(worker, 0), other.get(worker, 0)) for worker in {**one, **other}}


def filter_redeliverable(read_before: LastSequences, entries: LastSequences) -> dict[int, int]:
    """Return the part of `read_before` that may still be redelivered after the messages of `entries`.

    An entry worker's messages arrive in order, so none up to its last message in `entries` can follow.
    """
    remaining = {worker: last for worker, last in read_before.items() if entries.get(worker, 0) < last}
    return dict(list(remaining.items())[-MAX_REMEMBERED_WORKERS:])
