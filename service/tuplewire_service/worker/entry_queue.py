"""A queue of message groups that uses little memory even if the groups are small.

A group of one message costs about 300 bytes in addition to its payload. The middle of a long queue is
therefore stored as runs, in which small groups share columns: about 50 bytes for each message
(docs/how-to/tune.md). The two ends are not packed, for speed. Used by DeliveryLog (delivery.py), with two for
each task. Owns the queued entries. No I/O. Call only from the event loop. Design: docs/design/credit.md.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from struct import Struct
from typing import Any, TypeAlias

from tuplewire.values.columns import cut_column
from tuplewire.values.group import TaskGroup

_GROUPS_PER_RUN = 64
"""The number of groups in a run. An end with twice as many moves one run to the middle."""
_MAX_PACKED_BYTES = 64 * 1024
"""Runs above this size are not packed, because copying them costs more than it saves."""
_ROW = Struct("<iQQQIB")
"""Source (-1: none), path, entry_sequence, accepted_micros, number of messages, and flags."""
_REDELIVERED, _RETAINED_UPSTREAM, _HEADERS = 1, 2, 4


@dataclass(slots=True, eq=False)
class QueueEntry:
    """Messages in a queue, with the sequence of the first one."""

    first_sequence: int
    group: TaskGroup
    inbound: Any
    """The InboundSession that the messages arrived on."""

    @property
    def last_sequence(self) -> int:
        """The sequence of the last message."""
        return self.first_sequence + self.group.count - 1


@dataclass(slots=True, eq=False)
class _PackedRun:
    """A run of small groups to one task, without gaps from `first_sequence` on.

    The columns of the groups are joined (see TaskGroup), and `rows` contains a _ROW for each group.
    `redelivered` marks all messages of the run.
    """

    first_sequence: int
    task: int
    rows: bytes
    sessions: list[Any]
    lengths: bytes
    data: bytes
    header_lengths: bytes
    header_data: bytes
    redelivered: bool = False


_Run: TypeAlias = "_PackedRun | list[QueueEntry]"


class EntryQueue:
    """A queue of entries with two ends. All are for one task, and their sequences have no gaps."""

    __slots__ = ("_head", "_runs", "_tail")

    def __init__(self) -> None:
        # Not deques: an empty one takes 760 bytes, and a worker may have 10,000 tasks. The ends are short.
        self._head: list[QueueEntry] = []
        self._runs: list[_Run] = []
        self._tail: list[QueueEntry] = []

    def __bool__(self) -> bool:
        return bool(self._tail or self._head or self._runs)

    def __iter__(self) -> Iterator[QueueEntry]:
        """Iterate over a snapshot of the entries. Any thread may use the iterator."""
        return _iter_entries((self._head[:], *self._runs, self._tail[:]))

    def after(self, sequence: int) -> Iterator[QueueEntry]:
        """Yield the current entries, but skip runs that end at or before the sequence."""
        runs = [*self._runs, self._tail[:]]
        skipped = 0
        # A run ends where the next one starts, so only first sequences are compared and nothing is unpacked.
        while skipped + 1 < len(runs) and runs[skipped + 1] and _first_of(runs[skipped + 1]) <= sequence + 1:
            skipped += 1
        return _iter_entries((self._head[:], *runs[skipped:]))

    def append(self, entry: QueueEntry) -> None:
        """Add an entry at the end."""
        self._tail.append(entry)
        if len(self._tail) >= 2 * _GROUPS_PER_RUN:
            self._runs.append(_pack_run(self._tail[:_GROUPS_PER_RUN]))
            del self._tail[:_GROUPS_PER_RUN]

    def appendleft(self, entry: QueueEntry) -> None:
        """Add an entry at the front."""
        self._head.insert(0, entry)
        if len(self._head) >= 2 * _GROUPS_PER_RUN:
            self._runs.insert(0, _pack_run(self._head[-_GROUPS_PER_RUN:]))
            del self._head[-_GROUPS_PER_RUN:]

    @property
    def first(self) -> QueueEntry:
        """The entry at the front. The queue must not be empty."""
        if not self._head:
            self._fill_head()
        return self._head[0]

    def _fill_head(self) -> None:
        # A run is unpacked only when its first entry is needed.
        if self._runs:
            self._head.extend(_iter_entries([self._runs.pop(0)]))
        else:  # all entries are in the tail: exchange the ends instead of copying
            self._head, self._tail = self._tail, self._head

    def popleft(self) -> QueueEntry:
        """Remove and return the entry at the front. The queue must not be empty."""
        if not self._head:
            self._fill_head()
        return self._head.pop(0)

    def move_after(self, sequence: int, target: EntryQueue, *, redelivered: bool) -> None:
        """Move all messages after `sequence` to the front of the queue `target`, which continues after them.

        With `redelivered`, mark the moved messages. Runs move without unpacking, fast even for long queues.
        """
        self._runs.extend(_drain_to_run(self._tail))
        first_moved = bisect_right(self._runs, sequence, key=_first_of)
        runs = map(_mark_run, self._runs[first_moved:]) if redelivered else self._runs[first_moved:]
        target._runs[:0] = [*runs, *_drain_to_run(target._head)]
        del self._runs[first_moved:]
        # Only the last remaining run can also have later entries: move these individually.
        if self._runs:
            self._tail.extend(_iter_entries([self._runs.pop()]))
        else:
            self._head, self._tail = self._tail, self._head
        while self._tail and self._tail[-1].last_sequence > sequence:
            entry = self._tail.pop()
            if (count := sequence - entry.first_sequence + 1) > 0:
                group = entry.group
                self._tail.append(QueueEntry(entry.first_sequence, group.slice(0, count), entry.inbound))
                entry = QueueEntry(sequence + 1, group.slice(count, group.count), entry.inbound)
            target.appendleft(_mark_entry(entry) if redelivered else entry)


def _pack_run(entries: list[QueueEntry]) -> _Run:
    """Return entries as a run, packed if they are small."""
    groups = [entry.group for entry in entries]
    if sum(group.size_bytes + len(group.lengths) for group in groups) > _MAX_PACKED_BYTES:
        return entries
    return _PackedRun(
        entries[0].first_sequence,
        groups[0].task,
        b"".join(map(_pack_row, groups)),
        [entry.inbound for entry in entries],
        b"".join([group.lengths for group in groups]),
        b"".join([group.data for group in groups]),
        b"".join([group.header_lengths for group in groups]),
        b"".join([group.header_data for group in groups]),
    )


def _drain_to_run(entries: list[QueueEntry]) -> list[_Run]:
    """Remove all entries of one end of a queue; return them as one run, if there are any."""
    runs = [_pack_run(entries[:])] if entries else []
    entries.clear()
    return runs


def _pack_row(group: TaskGroup) -> bytes:
    return _ROW.pack(
        -1 if group.source is None else group.source,
        group.path,
        group.entry_sequence,
        group.accepted_micros,
        group.count,
        _REDELIVERED * group.redelivered
        + _RETAINED_UPSTREAM * group.retained_upstream
        + _HEADERS * bool(group.header_lengths),
    )


def _first_of(run: _Run) -> int:
    return run[0].first_sequence if isinstance(run, list) else run.first_sequence


def _mark_entry(entry: QueueEntry) -> QueueEntry:
    entry.group = entry.group.as_redelivered()
    return entry


def _mark_run(run: _Run) -> _Run:
    if isinstance(run, list):
        return list(map(_mark_entry, run))
    run.redelivered = True
    return run


def _iter_entries(runs: Iterable[_Run]) -> Iterator[QueueEntry]:
    for run in runs:
        yield from run if isinstance(run, list) else _unpack(run)


def _unpack(run: _PackedRun) -> Iterator[QueueEntry]:
    rows = list(_ROW.iter_unpack(run.rows))
    ends = [*accumulate((row[4] for row in rows), initial=0)]
    columns = cut_column(run.lengths, run.data, ends)
    header_ends = [*accumulate((row[4] if row[5] & _HEADERS else 0 for row in rows), initial=0)]
    headers = cut_column(run.header_lengths, run.header_data, header_ends)
    # Not strict: `ends` has one more element than the other columns.
    for row, start, column, header, inbound in zip(rows, ends, columns, headers, run.sessions, strict=False):
        source, path, entry_sequence, accepted_micros, _, flags = row
        group = TaskGroup(
            run.task,
            None if source < 0 else source,
            *column,
            redelivered=run.redelivered or bool(flags & _REDELIVERED),
            path=path,
            entry_sequence=entry_sequence,
            accepted_micros=accepted_micros,
            retained_upstream=bool(flags & _RETAINED_UPSTREAM),
            header_lengths=header[0],
            header_data=header[1],
        )
        yield QueueEntry(run.first_sequence + start, group, inbound)
