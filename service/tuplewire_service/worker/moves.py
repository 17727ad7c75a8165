"""Tasks that are changing hands: what comes for them waits until what was sent the old way is consumed.

Storm has nothing like it: a worker whose own executors change there ends itself. DESIGN.md, decision 12, has
who waits for what, why nothing is lost, doubled or overtaken, and why nobody waits for ever.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass

from tuplewire.group import TaskGroup, first_worker
from tuplewire_service.messaging.base import IRelayConnection, Origin
from tuplewire_service.worker.assignment import AssignedWorker
from tuplewire_service.worker.connections import Peer

Parcel = tuple[TaskGroup, Origin]


@dataclass(slots=True)
class _Way:
    """A worker to which a task's messages were sent.

    lost: what it has not acknowledged is on its way back; the connection looks empty before that is here.
    """

    peer: Peer
    connection: IRelayConnection
    lost: bool = False


class _Move:
    __slots__ = ("left", "own", "since", "task", "waiting", "ways")

    def __init__(self, task: int, own: int, now: float) -> None:
        self.task = task
        self.own = own
        self.since = now
        self.left: Callable[[], bool] | None = None
        self.ways: list[_Way] = []
        self.waiting: dict[int, list[Parcel]] = {}

    def first_worker(self, group: TaskGroup, origin: Origin) -> int:
        """Return the number of the worker that had messages from a program."""
        return first_worker(group.via) or origin.via or self.own

    def follows(self, group: TaskGroup, worker: int) -> bool:
        """Whether messages that come before these are still on an old way."""
        numbers = (0, worker) if worker == self.own else (worker,)
        return any(
            way.lost or way.connection.follows(self.task, numbers, group.position) for way in self.ways
        )

    def holds(self, group: TaskGroup, worker: int) -> bool:
        if worker in self.waiting and self.waiting[worker][0][0].position < group.position:
            return True
        return self.follows(group, worker)

    def hold(self, group: TaskGroup, origin: Origin) -> None:
        waiting = self.waiting.setdefault(self.first_worker(group, origin), [])
        insort(waiting, (group, origin), key=_position)  # what comes around may come before what waits

    def let_go(self) -> Iterator[Parcel]:
        """Take out what need not wait any more, in order for each first worker."""
        for worker, waiting in list(self.waiting.items()):
            free = 0
            while free < len(waiting) and not self.follows(waiting[free][0], worker):
                free += 1
            yield from waiting[:free]
            del waiting[:free]
            if not waiting:
                del self.waiting[worker]

    def ends(self) -> bool:
        self.ways = [way for way in self.ways if way.lost or not way.connection.quiet(self.task)]
        return not self.ways and not self.waiting and self.has_left()

    def has_left(self) -> bool:
        """Whether nothing is queued here that is to be passed on: what comes goes straight to the owner."""
        return self.left is None or self.left()


def _position(parcel: Parcel) -> int:
    return parcel[0].position


class Moves:
    """Every move that is under way. Belongs to the event loop; bounded by the senders' credit."""

    def __init__(self, own: int) -> None:
        """Start without any. own: the number of this worker in what others pass on for it."""
        self._own = own
        self._moves: dict[int, _Move] = {}

    def __contains__(self, task: int) -> bool:
        return task in self._moves

    def __len__(self) -> int:
        return len(self._moves)

    def leave(self, task: int, left: Callable[[], bool], now: float) -> None:
        """Note that a task's own queue here is to be passed on. now: the time, in seconds.

        left: whether it has been. What comes meanwhile follows it through the queue, and does not wait here.
        """
        self._moves.setdefault(task, _Move(task, self._own, now)).left = left

    def turn(self, task: int, peer: Peer, connection: IRelayConnection, now: float) -> None:
        """Note that a task's messages go to another worker than this from now on."""
        self._moves.setdefault(task, _Move(task, self._own, now)).ways.append(_Way(peer, connection))

    def stay(self, owner_of: Mapping[int, AssignedWorker]) -> None:
        """Forget the ways to owners: what goes there straight follows what went there before."""
        for task, move in self._moves.items():
            owner = owner_of.get(task)
            if owner is not None and move.has_left():
                move.ways = [way for way in move.ways if way.lost or way.peer != owner.peer]

    def holds(self, group: TaskGroup, origin: Origin) -> bool:
        """Whether messages of a moving task must wait: some that come before them are still on an old way."""
        move = self._moves[group.task]
        return move.holds(group, move.first_worker(group, origin))

    def hold(self, group: TaskGroup, origin: Origin) -> None:
        """Keep messages of a moving task."""
        self._moves[group.task].hold(group, origin)

    def lose(self, peers: Container[Peer]) -> None:
        """Take ways to these workers as not empty until give_up: what is on them is to be handed back."""
        for move in self._moves.values():
            for way in move.ways:
                way.lost |= way.peer in peers

    def give_up(self, connection: IRelayConnection) -> None:
        """Take a way as empty: the connection is closed, and what was on the way has been handed back."""
        for move in self._moves.values():
            move.ways = [way for way in move.ways if way.connection is not connection]

    def done(self) -> list[Parcel]:
        """Return, in order, what need not wait any more; forget the moves that are over."""
        parcels: list[Parcel] = []
        for task, move in list(self._moves.items()):
            parcels += move.let_go()
            if move.ends():
                del self._moves[task]
        return parcels

    def clear(self) -> list[Parcel]:
        """End every move at once; return what was held."""
        moves, self._moves = self._moves, {}
        return [parcel for move in moves.values() for held in move.waiting.values() for parcel in held]

    @property
    def pending_messages(self) -> int:
        """Messages that are held here."""
        return sum(
            len(group) for move in self._moves.values() for held in move.waiting.values() for group, _ in held
        )

    def peers(self, since: float) -> set[Peer]:
        """Return the workers on whose way a move has been waiting since that time or longer."""
        return {way.peer for move in self._moves.values() for way in move.ways if move.since <= since}
