"""Publications of sinks: an epoch comes in pieces, is seen all at once, and once for each task.

A sink that does not know whether its last attempt came through publishes the epoch again. No message is seen
twice. Pure state.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tuplewire.errors import ResourceLimitError, SequenceGapError, StaleEpochError
from tuplewire.group import TaskGroup
from tuplewire.session.pieces import LENGTH_BYTES, wire_bytes

Sink = tuple[str, str]
"""Whose it is, and its name: another owner's of the same name is another; see IAccess."""
MAX_REMEMBERED = 100_000
"""The last epoch is remembered for so many pairs of sink and task of an owner, the latest ones."""
MOST_AHEAD = 2**32
"""So far an epoch may be ahead of the last one. A count of batches does not jump by more; a slip may."""

IDLE_SECONDS = 60.0
"""An epoch without a new piece for so long is forgotten if others need the room."""


@dataclass(slots=True, eq=False)
class _Epoch:
    number: int
    pieces: list[Sequence[TaskGroup]] = field(default_factory=list)
    touched: float = 0.0


class Publications:
    """The epochs of all sinks. Belongs to the event loop.

    limit_bytes: how many bytes of incomplete epochs may be held, counted as in frames. As many again may be
    published and unacknowledged; there, each message counts four bytes beside its payload.

    The object is the inbound session of all published messages: see InboundSession.
    """

    source = "sink"
    worker_number = 0
    wants_releases = False

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._published: dict[str, dict[tuple[str, int], int]] = {}
        self._open: dict[Sink, _Epoch] = {}
        self._open_bytes = 0
        self._unreleased_bytes = 0

    def add(self, sink: Sink, epoch: int, piece: int, groups: Sequence[TaskGroup], now: float) -> None:
        """Keep a piece; it replaces the last one if it has the same number. now: seconds of any clock.

        Raises SequenceGapError if pieces before it are missing, ResourceLimitError if there is no room, and
        StaleEpochError for a number that is below the last one of the same sink and task, or far above.
        """
        self._check_epoch(sink, epoch, groups)
        if not piece:
            self._drop(sink)
            self._open[sink] = _Epoch(epoch)
        state = self._open.get(sink)
        if state is None or state.number != epoch or not len(state.pieces) - 1 <= piece <= len(state.pieces):
            raise SequenceGapError(
                f"sink {sink[1]!r}: piece {piece} of epoch {epoch} does not follow the last one that is "
                "here; begin again with piece 0"
            )
        state.touched = now
        if piece < len(state.pieces):
            self._open_bytes -= _held_by(state.pieces.pop())
        size = _held_by(groups)
        if self._open_bytes + size > self.limit_bytes:
            for idle in [name for name, each in self._open.items() if each.touched < now - IDLE_SECONDS]:
                self._drop(idle)
        if self._open_bytes + size > self.limit_bytes:
            self._drop(sink)
            raise ResourceLimitError(
                f"sink {sink[1]!r}: an epoch of more than {self.limit_bytes} bytes, with those of other "
                "sinks that are not complete; write less at once, or raise receive-queue-bytes of the worker"
            )
        state.pieces.append(groups)
        self._open_bytes += size

    def _check_epoch(self, sink: Sink, epoch: int, groups: Iterable[TaskGroup]) -> None:
        owner, name = sink
        published = self._published.get(owner, {})
        for group in groups:
            last = published.get((name, group.task), 0)
            if epoch < last:
                raise StaleEpochError(
                    f"sink {name!r} has published epoch {last} to task {group.task} already, which is after "
                    f"epoch {epoch}: its rows would be taken for seen; give the sink another name"
                )
            if epoch > last + MOST_AHEAD:
                raise StaleEpochError(
                    f"sink {name!r}: epoch {epoch} is too far ahead of {last}, the last one to task "
                    f"{group.task}: all lower ones would be lost from then on"
                )

    def _drop(self, sink: Sink) -> None:
        state = self._open.pop(sink, None)
        if state is not None:
            self._open_bytes -= sum(map(_held_by, state.pieces))

    def collected(self, sink: Sink) -> list[TaskGroup]:
        """Return the new messages of a sink's epoch; ResourceLimitError while too many are unconsumed."""
        state = self._open[sink]
        owner, name = sink
        published = self._published.get(owner, {})
        groups = [
            group
            for piece in state.pieces
            for group in piece
            if state.number > published.get((name, group.task), -1)
        ]
        if self._unreleased_bytes and self._unreleased_bytes + _size_of(groups) > self.limit_bytes:
            raise ResourceLimitError(
                f"{self._unreleased_bytes} bytes that sinks have published are not consumed; try again later"
            )
        return groups

    def publish(self, sink: Sink, collected: Sequence[TaskGroup]) -> None:
        """Note that the collected messages are on their way to their queues."""
        epoch = self._open[sink].number
        self._drop(sink)
        self._unreleased_bytes += _size_of(collected)
        owner, name = sink
        published = self._published.setdefault(owner, {})
        for task in {group.task for group in collected}:
            published.pop((name, task), None)
            published[name, task] = epoch
        while len(published) > MAX_REMEMBERED:
            del published[next(iter(published))]

    def release(self, _task: int, messages: int, size_bytes: int) -> None:
        """See InboundSession.release."""
        self._unreleased_bytes -= size_bytes + LENGTH_BYTES * messages


def _size_of(groups: Iterable[TaskGroup]) -> int:
    return sum(group.size_bytes + LENGTH_BYTES * len(group) for group in groups)


def _held_by(groups: Iterable[TaskGroup]) -> int:
    return sum(map(wire_bytes, groups))
