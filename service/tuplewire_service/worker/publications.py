"""Publications of sinks: an epoch comes in pieces, is seen all at once, and once for each task.

A sink that does not know whether its last attempt came through publishes the epoch again. No message is seen
twice. Pure state.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tuplewire.errors import ResourceLimitError, SequenceGapError
from tuplewire.group import TaskGroup
from tuplewire.session.pieces import LENGTH_BYTES, wire_bytes

MAX_REMEMBERED = 100_000
"""The last epoch is remembered for so many pairs of sink and task, the latest ones."""

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
        self._published: dict[tuple[str, int], int] = {}
        self._open: dict[str, _Epoch] = {}
        self._open_bytes = 0
        self._unreleased_bytes = 0

    def add(self, sink: str, epoch: int, piece: int, groups: Sequence[TaskGroup], now: float) -> None:
        """Keep a piece; it replaces the last one if it has the same number. now: seconds of any clock.

        Raises SequenceGapError if pieces before it are missing, ResourceLimitError if there is no room.
        """
        if not piece:
            self._drop(sink)
            self._open[sink] = _Epoch(epoch)
        state = self._open.get(sink)
        if state is None or state.number != epoch or not len(state.pieces) - 1 <= piece <= len(state.pieces):
            raise SequenceGapError(
                f"sink {sink!r}: piece {piece} of epoch {epoch} does not follow the last one that is here; "
                "begin again with piece 0"
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
                f"sink {sink!r}: an epoch of more than {self.limit_bytes} bytes, with those of other sinks "
                "that are not complete; write less at once, or raise receive-queue-bytes of the worker"
            )
        state.pieces.append(groups)
        self._open_bytes += size

    def _drop(self, sink: str) -> None:
        state = self._open.pop(sink, None)
        if state is not None:
            self._open_bytes -= sum(map(_held_by, state.pieces))

    def collected(self, sink: str) -> list[TaskGroup]:
        """Return the new messages of a sink's epoch; ResourceLimitError while too many are unconsumed."""
        state = self._open[sink]
        groups = [
            group
            for piece in state.pieces
            for group in piece
            if state.number > self._published.get((sink, group.task), -1)
        ]
        if self._unreleased_bytes and self._unreleased_bytes + _size_of(groups) > self.limit_bytes:
            raise ResourceLimitError(
                f"{self._unreleased_bytes} bytes that sinks have published are not consumed; try again later"
            )
        return groups

    def publish(self, sink: str, collected: Sequence[TaskGroup]) -> None:
        """Note that the collected messages are on their way to their queues."""
        epoch = self._open[sink].number
        self._drop(sink)
        self._unreleased_bytes += _size_of(collected)
        for task in {group.task for group in collected}:
            self._published.pop((sink, task), None)
            self._published[sink, task] = epoch
        while len(self._published) > MAX_REMEMBERED:
            del self._published[next(iter(self._published))]

    def release(self, _task: int, messages: int, size_bytes: int) -> None:
        """See InboundSession.release."""
        self._unreleased_bytes -= size_bytes + LENGTH_BYTES * messages


def _size_of(groups: Iterable[TaskGroup]) -> int:
    return sum(len(group.data) + len(group.lengths) for group in groups)


def _held_by(groups: Iterable[TaskGroup]) -> int:
    return sum(map(wire_bytes, groups))
