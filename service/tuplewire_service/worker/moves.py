"""Tasks that are changing hands: what comes for them waits until the old way is empty.

Storm has nothing like it: a worker whose own executors change there ends itself. DESIGN.md, decision 12, has
why nothing is lost, doubled or overtaken.
"""

from __future__ import annotations

from collections.abc import Callable

from tuplewire.group import TaskGroup
from tuplewire_service.messaging.base import Origin
from tuplewire_service.worker.connections import Peer

Parcel = tuple[TaskGroup, Origin]

Emptied = Callable[[], "list[Parcel] | None"]
"""None as long as something is still on the old way; then what has to go first on the new one."""


class _Move:
    __slots__ = ("released", "routed", "since", "waiting", "ways")

    def __init__(self, now: float) -> None:
        self.since = now
        self.ways: list[tuple[Emptied, Peer | None]] = []
        self.released: list[Parcel] = []
        self.routed: list[Parcel] = []
        self.waiting: list[Parcel] = []

    @property
    def parcels(self) -> list[Parcel]:
        return self.released + self.routed + self.waiting

    def done(self) -> bool:
        while self.ways:
            emptied, _ = self.ways[0]
            first = emptied()
            if first is None:
                return False
            self.released += first
            del self.ways[0]
        return True


class Moves:
    """Every move that is under way. Belongs to the event loop; bounded by the senders' credit."""

    def __init__(self) -> None:
        self._moves: dict[int, _Move] = {}

    def __contains__(self, task: int) -> bool:
        return task in self._moves

    def __bool__(self) -> bool:
        return bool(self._moves)

    def begin(self, task: int, emptied: Emptied, now: float, peer: Peer | None = None) -> None:
        """Hold a task's messages until this old way, and any that it is waiting for already, is empty.

        peer: the worker at the end of the old way; None: this one. now: the time, in seconds.
        """
        self._moves.setdefault(task, _Move(now)).ways.append((emptied, peer))

    def hold(self, group: TaskGroup, origin: Origin, *, routed: bool) -> None:
        """Keep messages of a moving task.

        routed: another worker sent them. They may be what was on the old way, come around, and go before
        what our own clients have sent since.
        """
        move = self._moves[group.task]
        (move.routed if routed else move.waiting).append((group, origin))

    def give_up(self, peer: Peer) -> None:
        """Take the way to a worker as empty: it is gone, and what was on the way has been handed back."""
        for move in self._moves.values():
            move.ways = [(emptied, end) for emptied, end in move.ways if end != peer]

    def done(self) -> list[Parcel]:
        """End the moves whose old ways are empty; return what was held for them, in order."""
        parcels: list[Parcel] = []
        for task, move in list(self._moves.items()):
            if move.done():
                parcels += move.parcels
                del self._moves[task]
        return parcels

    def clear(self) -> list[Parcel]:
        """End every move at once; return what was held."""
        moves, self._moves = self._moves, {}
        return [parcel for move in moves.values() for parcel in move.parcels]

    @property
    def pending_messages(self) -> int:
        """Messages that are held here."""
        return sum(len(group) for move in self._moves.values() for group, _ in move.parcels)

    def peers(self, since: float) -> set[Peer]:
        """Return the workers on whose way a move has been waiting since that time or longer."""
        return {
            peer
            for move in self._moves.values()
            for _, peer in move.ways
            if peer is not None and move.since <= since
        }
