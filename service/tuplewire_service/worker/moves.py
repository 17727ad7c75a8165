"""Tasks in a move: later messages wait until the earlier ones on the old route are consumed.

Messages from another worker wait only for a lost route, or behind messages that wait; otherwise they follow
the earlier ones. Storm has no equivalent. Used by router.py, queue_subscription.py and transfer_queue.py.
Owns the held messages and the old routes. Call only from the event loop. Design: docs/design/moves.md.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from tuplewire.connection.sending_end import SendingEnd
from tuplewire.settings.addresses import Peer
from tuplewire.values.group import TaskGroup, entry_worker
from tuplewire_service.messaging.base import InboundSession
from tuplewire_service.worker.assignment import AssignedWorker
from tuplewire_service.worker.departures import Successors

HeldGroup = tuple[TaskGroup, InboundSession]
_MAX_LOST_WORKERS = 10_000
"""Maximum number of worker numbers that are remembered. Each start of a worker has its own number."""


def entry_worker_of(group: TaskGroup, inbound: InboundSession, own_number: int = 0) -> int:
    """Return the number of the worker that accepted these messages from a program, or `own_number`."""
    return entry_worker(group.path) or inbound.worker_number or own_number


def _is_behind(group: TaskGroup, connection: SendingEnd, worker: int, own_number: int) -> bool:
    """Return True if earlier messages of an entry worker are unreleased on a connection."""
    # A flow without an entry worker (0) carries this worker's own messages.
    numbers = (0, worker) if worker == own_number else (worker,)
    return connection.session.flow_path_before(group.task, numbers, group.entry_sequence) is not None


@dataclass(slots=True)
class _OldRoute:
    """A worker to which a task's messages were sent. If `lost`, unacknowledged ones are being returned."""

    peer: Peer
    connection: SendingEnd
    lost: bool = False


class RouteHistory:
    """The last destinations of one entry worker's messages: a connection, or None for the local queue."""

    def __init__(self, connection: SendingEnd | None) -> None:
        self._ends: list[float] = [math.inf]
        self._destinations: list[SendingEnd | None] = [connection]

    def add(self, first: int, last: int, connection: SendingEnd | None) -> None:
        """Record the destination of the entry sequences from `first` to `last`."""
        start, stop = bisect_left(self._ends, first), bisect_right(self._ends, last)
        # Adjacent ranges with the same destination are merged.
        if start and self._destinations[start - 1] is connection:
            start -= 1
        self._ends[start:stop] = [last]
        self._destinations[start:stop] = [connection]

    def destination_before(self, entry_sequence: int) -> SendingEnd | None:
        """Return the destination of the message before this entry sequence; None: the local queue."""
        return self._destinations[bisect_left(self._ends, entry_sequence - 1)]


@dataclass(slots=True, eq=False)
class Move:
    """A task that moves to, from or past this worker. All earlier messages used the connection `original`."""

    own_number: int
    started_at: float
    routes: list[_OldRoute] = field(default_factory=list)
    held_by_entry_worker: dict[int, list[HeldGroup]] = field(default_factory=dict)
    original: SendingEnd | None = None
    histories: dict[int, RouteHistory] = field(default_factory=dict)
    """The known destinations of messages, by entry worker."""
    own_messages_follow: bool = False
    """True if messages of this worker's programs that do not wait must follow earlier messages too."""

    def is_behind_old_route(self, group: TaskGroup, inbound: InboundSession) -> bool:
        """Return True if earlier messages of the same entry worker are still on an old route.

        1. An old route is lost: all messages wait until its messages are returned. 2. Messages from another
        worker wait for no other route; they follow on it, see connection_to_follow(). 3. Messages of this
        worker's programs wait until the receivers have released the earlier ones.
        """
        # 1. Returned messages are older and have not arrived yet.
        if any(route.lost for route in self.routes):
            return True
        # 2. Half of a queue could otherwise wait for the other half; see docs/design/moves.md.
        if inbound.worker_number:
            return False
        # 3. All earlier messages have lower entry sequences, so no two messages wait for each other.
        return any(_is_behind(group, old.connection, self.own_number, self.own_number) for old in self.routes)

    def connection_to_follow(self, group: TaskGroup, inbound: InboundSession) -> SendingEnd | None:
        """Return the connection on which messages from another worker must follow earlier ones, or None.

        Messages from the same queue therefore stay together, and no message waits for another.

        1. Messages of this worker's programs wait, see is_behind_old_route(), unless `own_messages_follow`.
        2. The message before was sent on an old route, and it or an earlier one is unreleased: follow it.
        3. Otherwise no order is required.
        """
        # 1. A message that does not wait has no earlier message on an old route.
        if not (inbound.worker_number or self.own_messages_follow):
            return None
        worker = entry_worker_of(group, inbound, self.own_number)
        # 2. A message that follows others never returns to an earlier route, so it arrives.
        history = self.histories.setdefault(worker, RouteHistory(self.original))
        went_to = history.destination_before(group.entry_sequence)
        for route in self.routes:
            if route.connection is went_to and not route.lost:
                return went_to if _is_behind(group, route.connection, worker, self.own_number) else None
        return None

    def record_route(self, group: TaskGroup, inbound: InboundSession, connection: SendingEnd | None) -> None:
        """Record the destination of messages; None is the local queue."""
        worker = entry_worker_of(group, inbound, self.own_number)
        history = self.histories.setdefault(worker, RouteHistory(self.original))
        history.add(group.entry_sequence, group.next_entry_sequence - 1, connection)

    def take_ready(self) -> Iterator[HeldGroup]:
        """Remove and yield messages that no longer need to wait, in order for each entry worker."""
        for worker, waiting in list(self.held_by_entry_worker.items()):
            ready_count = 0
            # Stop at the first group that must wait, to keep the order of entry sequences.
            while ready_count < len(waiting) and not self.is_behind_old_route(*waiting[ready_count]):
                ready_count += 1
            yield from waiting[:ready_count]
            del waiting[:ready_count]
            if not waiting:
                del self.held_by_entry_worker[worker]


@dataclass(eq=False, repr=False)
class Moves:
    """All moves in progress. Call only from the event loop. Memory is bounded by the senders' credit."""

    successors: Successors
    get_connection: Callable[[Peer], SendingEnd | None]
    matches_assignment: Callable[[int], bool]
    """Returns False while a task leaves its local queue, or was opened early: messages follow through it."""
    clock: Callable[[], float] = time.monotonic
    by_task: dict[int, Move] = field(default_factory=dict)

    def get_or_start(self, task: int) -> Move:
        """Return the move of a task; start one if there is none."""
        return self.by_task.setdefault(task, Move(self.successors.own_number, self.clock()))

    def add_old_route(self, task: int, peer: Peer, connection: SendingEnd) -> None:
        """Record the previous connection of a task whose messages now take another route."""
        move = self.get_or_start(task)
        # Before the first move, all messages used this connection.
        if not (move.routes or move.histories):
            move.original = connection
        move.routes.append(_OldRoute(peer, connection))

    def filter_moving(self, tasks: Iterable[int] | None = None) -> list[int]:
        """Return the moving tasks among `tasks`; None: all moving tasks."""
        return list(self.by_task) if tasks is None else [task for task in tasks if task in self.by_task]

    def destination_of(
        self, group: TaskGroup, inbound: InboundSession, owner: Peer | None
    ) -> tuple[Move | None, SendingEnd | None]:
        """Return the task's move, if any, and the connection on which messages must follow earlier ones.

        The connection is None if no order is required. `owner` is the owner of the task, or None.

        1. A departed worker had forwarded earlier messages: follow them to its successor, unless that is the
           owner, or earlier messages are in flight to the owner.
        2. The task moves: follow the earlier messages, see Move.connection_to_follow().
        3. The task does not move: no order is required.
        """
        own_number = self.successors.own_number
        worker = entry_worker_of(group, inbound, own_number)
        successor = self.successors.by_task.pop((group.task, worker), None)
        # 1. Only one message: later ones follow it, or wait for it.
        if successor is not None and (peer := Peer(successor.worker_id, successor.address)) != owner:
            target = self.get_connection(peer)
            current = None if owner is None else self.get_connection(owner)
            # If earlier messages are in flight to the owner, this one must follow them there.
            if target is not None and (current is None or not _is_behind(group, current, worker, own_number)):
                self.add_old_route(group.task, peer, target)
                target.ack_handler.watch_releases([group.task])
                self.by_task[group.task].own_messages_follow = True
                return self.by_task[group.task], target
        # 2. and 3. Without a move, all messages of the task take one route, in order.
        move = self.by_task.get(group.task)
        return move, move.connection_to_follow(group, inbound) if move is not None else None

    def try_hold(self, group: TaskGroup, inbound: InboundSession) -> bool:
        """Hold messages until take_ready(), behind an old route or held ones; False if none must wait."""
        if (move := self.by_task.get(group.task)) is None:
            return False
        worker = entry_worker_of(group, inbound, move.own_number)
        held = move.held_by_entry_worker.get(worker)
        follows_held = held and held[0][0].entry_sequence < group.entry_sequence
        if not (follows_held or move.is_behind_old_route(group, inbound)):
            return False
        # Returned messages may be older than held ones.
        held = move.held_by_entry_worker.setdefault(worker, [])
        insort(held, (group, inbound), key=lambda each: each[0].entry_sequence)
        return True

    def as_dequeued(self, groups: Iterable[HeldGroup]) -> Iterator[HeldGroup]:
        """Yield messages that leave local queues, with this worker as their entry worker if it is."""
        for group, inbound in groups:
            yield group.as_dequeued(0 if inbound.worker_number else self.successors.own_number), inbound

    def mark_lost(self, peers: Container[Peer]) -> None:
        """Treat these workers' routes as occupied until remove_routes(): their messages will be returned."""
        for move in self.by_task.values():
            for route in move.routes:
                route.lost |= route.peer in peers

    def remove_routes(self, connection: SendingEnd, groups: Iterable[HeldGroup]) -> list[HeldGroup]:
        """Remove the routes of a closed connection; return its messages that wait for no other old route."""
        for move in self.by_task.values():
            move.routes = [route for route in move.routes if route.connection is not connection]
        return [(group, inbound) for group, inbound in groups if not self.try_hold(group, inbound)]

    def take_ready(self, tasks: Iterable[int], owners: Mapping[int, AssignedWorker]) -> list[HeldGroup]:
        """Return, in order, the messages of these tasks that no longer wait; forget completed moves."""
        held_groups: list[HeldGroup] = []
        for task in self.filter_moving(tasks):
            move = self.by_task[task]
            owner = owners.get(task)
            # Messages to the current owner follow the earlier ones anyway.
            if owner is not None and self.matches_assignment(task):
                move.routes = [route for route in move.routes if route.lost or route.peer != owner.peer]
            held_groups += move.take_ready()
            # The connection of a lost route looks empty before its messages return.
            move.routes = [
                each for each in move.routes if each.lost or not each.connection.session.all_released(task)
            ]
            # Until the local queue is empty, later messages must still follow through it.
            if not (move.routes or move.held_by_entry_worker) and self.matches_assignment(task):
                del self.by_task[task]
        return held_groups

    def held_groups(self) -> Iterator[TaskGroup]:
        """Return the held messages."""
        held = (groups for move in self.by_task.values() for groups in move.held_by_entry_worker.values())
        return (group for groups in held for group, _ in groups)

    def previous_owners(self, min_age_seconds: float = 0.0) -> set[Peer]:
        """Return the workers with an old route whose move started at least `min_age_seconds` ago."""
        since = self.clock() - min_age_seconds
        return {old.peer for move in self.by_task.values() for old in move.routes if move.started_at <= since}


class EntrySequences:
    """Numbers the messages of programs by task, in the order of acceptance by this entry worker.

    The numbers travel with messages, and order them during a move. Call only from the event loop.
    """

    def __init__(self) -> None:
        self._next_sequences: dict[int, int] = {}
        self._first_sequence = 1

    def assign_sequence(self, group: TaskGroup, now_micros: int, *, retained_upstream: bool) -> TaskGroup:
        """Return messages with their entry sequence, which only grows. See TaskGroup.numbered()."""
        entry_sequence = self._next_sequences.get(group.task, self._first_sequence)
        self._next_sequences[group.task] = entry_sequence + group.count
        return group.numbered(entry_sequence, now_micros, retained_upstream=retained_upstream)

    def forget(self, task: int) -> None:
        """Forget the count of a task that has no owner and no messages in transit."""
        # A number is never used twice for a task, because a reader may remember it.
        self._first_sequence = max(self._first_sequence, self._next_sequences.pop(task, 1))


class LostWorkers:
    """Workers that disconnected without notice. Programs resend messages, perhaps before the originals."""

    def __init__(self) -> None:
        self.numbers: dict[int, None] = {}

    def on_worker_connection(self, number: int, *, connected: bool) -> None:
        """See IConnectionCallback."""
        # Removed first, so that a worker that is lost again becomes the newest entry.
        self.numbers.pop(number, None)
        if not connected:
            self.numbers[number] = None
            if len(self.numbers) > _MAX_LOST_WORKERS:
                del self.numbers[next(iter(self.numbers))]

    def accepted(self, group: TaskGroup, inbound: InboundSession) -> bool:
        """Return True if a lost worker accepted these messages, so that a copy may have arrived earlier."""
        return entry_worker_of(group, inbound) in self.numbers
