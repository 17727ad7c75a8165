"""Tasks that are changing hands: later messages wait until the earlier ones on the old route are consumed.

What comes from another worker does not wait, and follows the earlier ones. Storm has nothing like it: a
worker whose own executors change there ends itself. The rules, why nothing is lost, doubled or overtaken, and
why no message waits for ever: docs/design/moves.md.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from tuplewire.connection.sending_end import SendingEnd
from tuplewire.values.group import TaskGroup, entry_worker
from tuplewire_service.messaging.base import InboundSession
from tuplewire_service.worker.assignment import AssignedWorker
from tuplewire_service.worker.connections import Peer
from tuplewire_service.worker.successors import Successors

HeldGroup = tuple[TaskGroup, InboundSession]
_MOST_LOST = 10_000
"""So many numbers are remembered; each start of a worker has its own."""


@dataclass(slots=True)
class _Route:
    """A worker to which a task's messages were sent.

    lost: its unacknowledged messages are on their way back. Its connection looks empty before they are here.
    """

    peer: Peer
    connection: SendingEnd
    lost: bool = False


class Trail:
    """Where messages of one entry worker went last from here: by a connection, or (None) into our queue."""

    def __init__(self, connection: SendingEnd | None) -> None:
        """Begin with all of them in one place."""
        self._ends: list[float] = [math.inf]
        self._went_to: list[SendingEnd | None] = [connection]

    def add(self, first: int, last: int, connection: SendingEnd | None) -> None:
        """Note where messages went; first, last: their entry sequences."""
        start, stop = bisect_left(self._ends, first), bisect_right(self._ends, last)
        if start and self._went_to[start - 1] is connection:
            start -= 1
        self._ends[start:stop] = [last]
        self._went_to[start:stop] = [connection]

    def before(self, entry_sequence: int) -> SendingEnd | None:
        """Return where the messages went that come before this one."""
        return self._went_to[bisect_left(self._ends, entry_sequence - 1)]


@dataclass(slots=True, eq=False)
class Move:
    """A task that changes hands. first: where all messages went before."""

    task: int
    own: int
    since: float
    left: Callable[[], bool] | None = None
    routes: list[_Route] = field(default_factory=list)
    waiting: dict[int, list[HeldGroup]] = field(default_factory=dict)
    first: SendingEnd | None = None
    trails: dict[int, Trail] = field(default_factory=dict)
    """By entry workers."""
    own_follow: bool = False
    """Whether what programs sent here goes behind earlier messages, too, if it does not wait."""

    def entry_worker(self, group: TaskGroup, inbound: InboundSession) -> int:
        """Return the number of the worker that accepted messages from a program."""
        return entry_worker(group.forwarded) or inbound.worker_number or self.own

    def must_wait(self, group: TaskGroup, inbound: InboundSession) -> bool:
        """Whether earlier messages of the same entry worker are still on an old route.

        What comes from another worker follows them there; see earlier().
        """
        if any(route.lost for route in self.routes):
            return True
        if inbound.worker_number:
            return False
        return any(self._is_before(route, (0, self.own), group) for route in self.routes)

    def holds(self, group: TaskGroup, inbound: InboundSession) -> bool:
        """Whether messages must wait: see must_wait(), or because earlier ones wait."""
        waiting = self.waiting.get(self.entry_worker(group, inbound))
        if waiting and waiting[0][0].entry_sequence < group.entry_sequence:
            return True
        return self.must_wait(group, inbound)

    def earlier(self, group: TaskGroup, inbound: InboundSession) -> SendingEnd | None:
        """Return where messages that another worker has sent must go, behind earlier ones; None: anywhere.

        So messages that were in a queue together stay together, and none of them waits for another one.
        """
        if not (inbound.worker_number or self.own_follow):
            return None
        worker = self.entry_worker(group, inbound)
        numbers = (0, worker) if worker == self.own else (worker,)
        went_to = self._trail(worker).before(group.entry_sequence)
        for route in self.routes:
            if route.connection is went_to and not route.lost and self._is_before(route, numbers, group):
                return went_to
        return None

    def went(self, group: TaskGroup, inbound: InboundSession, connection: SendingEnd | None) -> None:
        """Note where messages went; None: into our queue."""
        trail = self._trail(self.entry_worker(group, inbound))
        trail.add(group.entry_sequence, group.end - 1, connection)

    def _is_before(self, route: _Route, workers: Collection[int], group: TaskGroup) -> bool:
        return route.connection.window.route_before(self.task, workers, group.entry_sequence) is not None

    def _trail(self, worker: int) -> Trail:
        """Return where the messages of an entry worker are, as far as is known here."""
        if worker not in self.trails:
            self.trails[worker] = Trail(self.first)
        return self.trails[worker]

    def turn(self, route: _Route) -> None:
        """Note a worker that has the task no more."""
        if not (self.routes or self.trails):
            self.first = route.connection
        self.routes.append(route)

    def hold(self, group: TaskGroup, inbound: InboundSession) -> None:
        """Keep messages until let_go() gives them out."""
        waiting = self.waiting.setdefault(self.entry_worker(group, inbound), [])
        # Returning messages may come before held ones.
        insort(waiting, (group, inbound), key=lambda held: held[0].entry_sequence)

    def let_go(self) -> Iterator[HeldGroup]:
        """Take out messages that need not wait any more, in order for each entry worker."""
        for worker, waiting in list(self.waiting.items()):
            free = 0
            while free < len(waiting) and not self.must_wait(*waiting[free]):
                free += 1
            yield from waiting[:free]
            del waiting[:free]
            if not waiting:
                del self.waiting[worker]

    def ends(self) -> bool:
        """Forget the old routes that are empty; return whether nothing is left to wait for."""
        self.routes = [
            each for each in self.routes if each.lost or not each.connection.window.all_released(self.task)
        ]
        return not self.routes and not self.waiting and self.has_left()

    def has_left(self) -> bool:
        """Whether our queue of the task is empty, so that new messages go straight to the owner."""
        return self.left is None or self.left()


class Moves:
    """Every move that is under way. Belongs to the event loop; bounded by the senders' credit."""

    def __init__(
        self,
        own: int,
        incarnation: int = 0,
        connection: Callable[[Peer], SendingEnd | None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start without any.

        own: this worker's number as an entry worker; incarnation: its own. connection: returns the connection
        to a worker. clock: the time in seconds.
        """
        self._own = own
        self._connection = connection
        self._clock = clock
        self.successors = Successors(own, incarnation)
        self._moves: dict[int, Move] = {}

    def __contains__(self, task: int) -> bool:
        return task in self._moves

    def __len__(self) -> int:
        return len(self._moves)

    def leave(self, task: int, left: Callable[[], bool]) -> None:
        """Note that a task's queue here is to be forwarded.

        left: returns True once it was. Until then new messages follow through the queue and do not wait.
        """
        self._move_of(task).left = left

    def turn(self, task: int, peer: Peer, connection: SendingEnd) -> None:
        """Note that a task's messages go to another worker than this from now on."""
        self._move_of(task).turn(_Route(peer, connection))

    def _move_of(self, task: int) -> Move:
        return self._moves.setdefault(task, Move(task, self._own, self._clock()))

    def among(self, tasks: Iterable[int] | None = None) -> list[int]:
        """Return which of these tasks move; None: all that do."""
        return list(self._moves) if tasks is None else [task for task in tasks if task in self._moves]

    def stay(self, tasks: Iterable[int], owner_of: Mapping[int, AssignedWorker]) -> None:
        """Forget these tasks' routes to present owners: messages to these follow the earlier ones anyway."""
        for task in self.among(tasks):
            move = self._moves[task]
            owner = owner_of.get(task)
            if owner is not None and move.has_left():
                move.routes = [route for route in move.routes if route.lost or route.peer != owner.peer]

    def way(
        self, group: TaskGroup, inbound: InboundSession, owner: Peer | None
    ) -> tuple[Move | None, SendingEnd | None]:
        """Return the task's move, if any, and where messages must go behind earlier ones; None: anywhere.

        owner: the worker that has the task, which may be this one; None: nobody.
        """
        entered = entry_worker(group.forwarded) or inbound.worker_number or self._own
        after = self.successors.take(group.task, entered) if self.successors else None
        if after is not None and (peer := (after.worker_id, after.address)) != owner:
            connection = self._connection(peer)
            if connection is not None and not self._waits_for(owner, group, entered):
                self.turn(group.task, peer, connection)
                connection.receipts.watch([group.task])
                self._moves[group.task].own_follow = True
                return self._moves[group.task], connection
        move = self._moves.get(group.task)
        return move, move.earlier(group, inbound) if move is not None else None

    def _waits_for(self, owner: Peer | None, group: TaskGroup, entered: int) -> bool:
        """Whether earlier messages of an entry worker are on their way to the owner already."""
        connection = None if owner is None else self._connection(owner)
        numbers = (0, entered) if entered == self._own else (entered,)
        return connection is not None and (
            connection.window.route_before(group.task, numbers, group.entry_sequence) is not None
        )

    def keep(self, group: TaskGroup, inbound: InboundSession) -> bool:
        """Keep messages that must wait for earlier ones on an old route; return False if they need not."""
        move = self._moves.get(group.task)
        if move is None or not move.holds(group, inbound):
            return False
        move.hold(group, inbound)
        return True

    def out_of_queues(self, left: Iterable[HeldGroup]) -> Iterator[HeldGroup]:
        """Return messages that leave our queues as they travel on."""
        for group, inbound in left:
            yield group.out_of_queue(0 if inbound.worker_number else self._own), inbound

    def lose(self, peers: Container[Peer]) -> None:
        """Take routes to these workers as not empty until give_up(): their messages will be handed back."""
        for move in self._moves.values():
            for route in move.routes:
                route.lost |= route.peer in peers

    def give_up(self, connection: SendingEnd, left: Iterable[HeldGroup]) -> list[HeldGroup]:
        """Take a route as empty: its connection is closed, and these messages were handed back.

        Return those that need not wait for others, which are on another old route.
        """
        for move in self._moves.values():
            move.routes = [route for route in move.routes if route.connection is not connection]
        return [(group, inbound) for group, inbound in left if not self.keep(group, inbound)]

    def done(self, tasks: Iterable[int]) -> list[HeldGroup]:
        """Take out, in order, these tasks' messages that need not wait; forget the moves that are over."""
        held_groups: list[HeldGroup] = []
        for task in self.among(tasks):
            move = self._moves[task]
            held_groups += move.let_go()
            if move.ends():
                del self._moves[task]
        return held_groups

    def clear(self) -> list[HeldGroup]:
        """End every move at once; return the held messages."""
        moves, self._moves = self._moves, {}
        return [
            held_group for move in moves.values() for held in move.waiting.values() for held_group in held
        ]

    def held_groups(self) -> Iterator[TaskGroup]:
        """Return what is held here."""
        return (group for move in self._moves.values() for held in move.waiting.values() for group, _ in held)

    def peers(self, seconds: float = 0.0) -> set[Peer]:
        """Return the workers on whose old route a move has been waiting for so many seconds."""
        since = self._clock() - seconds
        return {route.peer for move in self._moves.values() for route in move.routes if move.since <= since}


class EntrySequences:
    """Counts the messages of programs by task, in the order in which an entry worker accepts them.

    An entry sequence travels with its messages. While a task moves, it tells every worker which messages come
    first. Belongs to the event loop.
    """

    def __init__(self) -> None:
        self._next: dict[int, int] = {}
        self._first = 1

    def place(self, group: TaskGroup, now_micros: int, *, kept: bool) -> TaskGroup:
        """Return messages with their entry sequence, which only grows. now_micros, kept: see TaskGroup.at."""
        entry_sequence = self._next.get(group.task, self._first)
        self._next[group.task] = entry_sequence + len(group)
        return group.at(entry_sequence, now_micros, kept=kept)

    def forget(self, task: int) -> None:
        """Forget a task's count: nobody holds it any more, and nothing of it is on the way.

        A number is never given twice for a task: a reader may remember it.
        """
        self._first = max(self._first, self._next.pop(task, 1))


class LostWorkers:
    """Workers that are gone without a goodbye: programs send again what they had, which may be faster."""

    def __init__(self) -> None:
        self._numbers: dict[int, None] = {}

    def __bool__(self) -> bool:
        return bool(self._numbers)

    def worker_is(self, number: int, *, connected: bool) -> None:
        """See IConnectionCallback."""
        self._numbers.pop(number, None)
        if not connected:
            self._numbers[number] = None
            if len(self._numbers) > _MOST_LOST:
                del self._numbers[next(iter(self._numbers))]

    def had(self, group: TaskGroup, inbound: InboundSession) -> bool:
        """Whether messages were accepted by a lost worker, so that a second copy may have been faster."""
        return (entry_worker(group.forwarded) or inbound.worker_number) in self._numbers
