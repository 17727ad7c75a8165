"""Tasks that are changing hands: what our own clients send to them waits until the old way is empty.

Storm has nothing like it: a worker whose own executors change there ends itself. DESIGN.md, decision 12, has
why nothing is lost, doubled or overtaken.
"""

from __future__ import annotations

from collections.abc import Callable

from tuplewire.group import TaskGroup
from tuplewire_service.messaging.base import Origin
from tuplewire_service.worker.connections import Peer

Parcel = tuple[TaskGroup, Origin]

Emptied = Callable[[], bool]
"""Whether nothing is left on an old way."""


class _Move:
    __slots__ = ("since", "waiting", "ways")

    def __init__(self, now: float) -> None:
        self.since = now
        self.ways: list[tuple[Emptied, Peer | None]] = []
        self.waiting: list[Parcel] = []


class Moves:
    """Every move that is under way. Belongs to the event loop; bounded by the senders' credit."""

    def __init__(self) -> None:
        self._moves: dict[int, _Move] = {}

    def __contains__(self, task: int) -> bool:
        return task in self._moves

    def __len__(self) -> int:
        return len(self._moves)

    def begin(self, task: int, emptied: Emptied, now: float, peer: Peer | None = None) -> None:
        """Hold a task's messages until this old way, and any that it is waiting for already, is empty.

        peer: the worker at the end of the old way; None: this one. now: the time, in seconds.
        """
        self._moves.setdefault(task, _Move(now)).ways.append((emptied, peer))

    def hold(self, group: TaskGroup, origin: Origin) -> None:
        """Keep messages of a moving task."""
        self._moves[group.task].waiting.append((group, origin))

    def give_up(self, peer: Peer) -> None:
        """Take the way to a worker as empty: it is gone, and what was on the way has been handed back."""
        for move in self._moves.values():
            move.ways = [(emptied, end) for emptied, end in move.ways if end != peer]

    def done(self) -> list[Parcel]:
        """End the moves whose old ways are empty; return what was held for them, in order."""
        parcels: list[Parcel] = []
        for task, move in list(self._moves.items()):
            move.ways = [(emptied, peer) for emptied, peer in move.ways if not emptied()]
            if not move.ways:
                parcels += move.waiting
                del self._moves[task]
        return parcels

    def clear(self) -> list[Parcel]:
        """End every move at once; return what was held."""
        moves, self._moves = self._moves, {}
        return [parcel for move in moves.values() for parcel in move.waiting]

    @property
    def pending_messages(self) -> int:
        """Messages that are held here."""
        return sum(len(group) for move in self._moves.values() for group, _ in move.waiting)

    def peers(self, since: float) -> set[Peer]:
        """Return the workers on whose way a move has been waiting since that time or longer."""
        return {
            peer
            for move in self._moves.values()
            for _, peer in move.ways
            if peer is not None and move.since <= since
        }
