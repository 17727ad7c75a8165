"""Routes messages to the queues of local tasks or to other workers, and accounts for all of them.

Source: Storm's `WorkerState`, with its `transferLocalBatch` and `transfer`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from functools import partial

from tuplewire.connection.log_rate import LogRate
from tuplewire.errors import (
    ClosedError,
    DrainingError,
    MessageTooLargeError,
    NotReadyError,
    PermissionDeniedError,
    RefusedError,
    TuplewireError,
    UnknownTaskError,
)
from tuplewire.group import MAX_UNQUEUED_HOPS, TaskGroup
from tuplewire.session.delivery import Done
from tuplewire.session.ledger import DropReason, Ledger, LedgerSnapshot, Settled
from tuplewire.session.pieces import by_size
from tuplewire_service.messaging.base import (
    IConnectionCallback,
    IContext,
    InboundSession,
    IRelayConnection,
    ReceivedBatch,
)
from tuplewire_service.messaging.receiving_end import worker_number
from tuplewire_service.messaging.subscription import ISubscription, ISubscriptionSource, SubscribeRequest
from tuplewire_service.worker import refusals
from tuplewire_service.worker.assignment import AssignedWorker, Assignment
from tuplewire_service.worker.connections import Connections, Peer
from tuplewire_service.worker.moves import EntrySequences, HeldGroup, Moves
from tuplewire_service.worker.publications import Publications
from tuplewire_service.worker.receive_queues import ReceiveQueues
from tuplewire_service.worker.status import PeerSnapshot
from tuplewire_service.worker.times import LOCAL
from tuplewire_service.worker.transfer import TransferQueue
from tuplewire_service.worker.worker_settings import WorkerSettings

logger = logging.getLogger(__name__)

_GIVE_UP_SECONDS = 3.0
"""How long a worker may be out of reach, once no assignment names it, before its messages go elsewhere."""


class Router(IConnectionCallback, ISubscriptionSource):
    """Knows which worker holds each task, and brings messages there. Belongs to the event loop.

    Guarantee: an accepted message is acknowledged, dropped for a reason, or held here; see ledger().
    """

    def __init__(
        self,
        settings: WorkerSettings,
        incarnation: int,
        context: IContext,
        draining: Callable[[], bool],
        consumed: Callable[[Sequence[Done]], None],
    ) -> None:
        """Begin without an assignment.

        context: the transport to other workers.
        draining: returns True if this worker is to tell its peers that it drains.
        consumed: called with the messages that a consumer has acknowledged.
        """
        self.assignment: Assignment | None = None
        self._version_received = 0
        self.misnamed = ""
        """Why the assignment does not mean this worker; empty when it does."""
        self._settings = settings
        self._consumed = consumed
        self._clock = asyncio.get_running_loop().time
        self._ledger = Ledger()
        self._log_rate = LogRate()
        self._activity = asyncio.Event()
        self._local: frozenset[int] = frozenset()
        self._dead: set[Peer] = set()
        self.taken_here: Container[int] = ()
        """Tasks whose queues are consumed in this process, and that no other consumer may have."""
        self.queues = ReceiveQueues(settings, incarnation, self._done, self._not_here)
        self._entry_sequences = EntrySequences()
        self._publications = Publications(settings.receive_queue_bytes)
        self._moves = Moves(worker_number(settings.worker_id, incarnation))
        self.connections = Connections(
            context,
            settings.topology,
            on_settled=self._settled,
            on_released=self._released,
            assignment_version=lambda: self.assignment_version,
            draining=draining,
            on_returned=self._returned,
        )
        self._transfer = TransferQueue(asyncio.get_running_loop(), self._send, self._unroutable, self._lose)

    def __repr__(self) -> str:
        return (
            f"<Router {self._settings.worker_id} version={self.assignment_version} "
            f"local_tasks={len(self._local)} moving_tasks={len(self._moves)} {self.connections!r}>"
        )

    # --- assignment --------------------------------------------------------------------------------

    @property
    def assignment_version(self) -> int:
        """See IConnectionCallback."""
        return self.assignment.version if self.assignment is not None else 0

    def newest_version(self, peers: Iterable[PeerSnapshot]) -> int:
        """Return the newest assignment version that this worker knows of: its own, or another worker's.

        Others say theirs when this worker connects to them (peers), and with each frame.
        """
        told = (peer.statistics.receiver_assignment_version for peer in peers)
        return max(self.assignment_version, self._version_received, *told)

    def update(self, assignment: Assignment, *, force: bool = False) -> bool:
        """Put a newer assignment in force; False when this version is in force already.

        Raises what Assignment.succeeds raises, which has `force`, too.
        """
        if not assignment.succeeds(self.assignment, self._settings.topology, force=force):
            return False
        self._transfer.drain()  # by the old routes
        self.assignment = assignment
        self._dead.difference_update(worker.peer for worker in assignment.workers)
        local = assignment.tasks_of(self._settings.worker_id)
        others = [w for w in assignment.workers if w.worker_id != self._settings.worker_id and w.tasks]
        before = self._transfer.owner_of
        self._local = frozenset(local)
        self._publications.limit_bytes = self._settings.receive_queue_bytes * max(1, len(local))
        self._transfer.owner_of = {task: worker for worker in others for task in worker.tasks}
        self._begin_moves(before, self.queues.assign(local))
        self.refresh()
        self._end_moves()
        if self._moves:
            asyncio.get_running_loop().call_later(_GIVE_UP_SECONDS, self.refresh)
        self._activity.set()
        logger.info(
            "assignment.changed",
            extra={"version": assignment.version, "local_tasks": len(local), "peers": len(others)},
        )
        return True

    def _begin_moves(self, before: Mapping[int, AssignedWorker], gone: Iterable[int]) -> None:
        """Hold new messages for each task that has moved, until its old route is empty."""
        now = self._clock()
        for task in gone:
            self._moves.leave(task, partial(self.queues.left, task), now)
        lost: dict[Peer, list[int]] = {}
        for task, owner in before.items():
            after = self._transfer.owner_of.get(task)
            if after is None or after.peer != owner.peer:
                lost.setdefault(owner.peer, []).append(task)
        for peer, tasks in lost.items():
            self._wait_for(peer, tasks, now)

    def refresh(self) -> None:
        """Keep the connections to the owners of tasks, and to former owners until their tasks have moved.

        A former owner is given up if it has left the assignment and is out of reach.
        """
        assigned = (
            {worker.peer for worker in self.assignment.workers} if self.assignment is not None else set()
        )
        needed = {worker.peer: worker for worker in self._transfer.owner_of.values()}
        former = self._moves.peers(since=math.inf)
        overdue = self._moves.peers(since=self._clock() - _GIVE_UP_SECONDS) - assigned
        lost = {peer for peer in overdue if not self.connections.ready(peer)} | (former & self._dead)
        self._moves.lose(lost)
        self.connections.refresh(needed, former - lost, lost, _GIVE_UP_SECONDS)

    def lose(self, peers: Collection[Peer]) -> None:
        """Take these workers as dead, for as long as no assignment names them.

        What they have not acknowledged goes at once to where the next assignment says, or nowhere.
        """
        self._dead.update(peers)

    def _end_moves(self) -> None:
        """Route messages that have left our queues, and held messages whose old routes are empty."""
        if self._moves:
            self._reroute((group.out_of_queue(), inbound) for group, inbound in self.queues.leave())
            self._moves.stay(self._transfer.owner_of)
            self._reroute(self._moves.done())

    def _reroute(self, held_groups: Iterable[HeldGroup]) -> None:
        waiting = deque(held_groups)
        try:
            while waiting:
                group, inbound = waiting[0]
                if not self._route(group, inbound):
                    self._unroutable(group, inbound)
                waiting.popleft()
        finally:
            self._lose(group for group, _ in waiting)

    def _returned(self, connection: IRelayConnection, left: Sequence[HeldGroup]) -> None:
        """Route a lost worker's unacknowledged messages again, then the messages that waited for them."""
        self._reroute(left)
        self._moves.give_up(connection)
        self._end_moves()

    # --- messages ------------------------------------------------------------------------------------

    def recv(self, batch: ReceivedBatch) -> None:
        """Route a batch: to the queues of local tasks, to the transfer queue, or back as refused."""
        batch.hold()
        inbound = batch.inbound
        version = batch.assignment_version
        ahead = version > self.assignment_version and inbound.worker_number
        if ahead:
            self._version_received = max(self._version_received, version)
        now_micros = time.time_ns() // 1000
        stale = 0 < version < self.assignment_version and not inbound.worker_number
        for group in batch.groups:
            if stale and group.task in self._transfer.owner_of:
                owner = self._transfer.owner_of[group.task]
                batch.refuse(group, refusals.stale(group.task, owner, version, self.assignment_version))
                continue
            if group.unqueued_hops > MAX_UNQUEUED_HOPS and group.task not in self.queues:
                batch.refuse(group, self._circling(group.task))
                continue
            if not inbound.worker_number:
                group = self._entry_sequences.place(group, now_micros)  # noqa: PLW2901 - the same messages
            if ahead:
                self._open_early(group.task)
            if group.task in self._moves and self._moves.holds(group, inbound):
                self._moves.hold(group, inbound)
            elif not self._route(group, inbound):
                if not group.forwarded:
                    batch.refuse(group, self._not_here(group.task))
                    continue
                self._unroutable(group, inbound)  # its program has heard already that it is accepted
            self._ledger.accepted += len(group)

    def publish(self, sink: str, epoch: int, piece: int, groups: Sequence[TaskGroup], *, last: bool) -> int:
        """Take a piece of a sink's epoch; the last piece puts the whole epoch in the queues.

        Returns how many messages that were. After an error nothing of the epoch is in a queue.

        Raises:
            NotReadyError: There is no assignment yet.
            NotLocalError, UnknownTaskError: A task is not held here.
            SequenceGapError, ResourceLimitError: See Publications.
        """
        if (error := self.not_ready) is not None:
            raise error
        self._publications.add(sink, epoch, piece, groups, time.monotonic())
        if not last:
            return 0
        collected = self._publications.collected(sink)
        for group in collected:
            if group.task not in self.queues:
                raise self._not_here(group.task)
        self._publications.publish(sink, collected)
        self.recv(ReceivedBatch.arrived(collected, self._publications))
        return sum(map(len, collected))

    def _open_early(self, task: int) -> None:
        """Hold a task that is ours by an assignment that has not arrived yet."""
        if not self.queues.open(task):
            return
        self._transfer.drain()  # by the old routes
        now = self._clock()
        self._moves.leave(task, partial(self.queues.left, task), now)
        owner = self._transfer.owner_of.get(task)
        if owner is not None:
            self._wait_for(owner.peer, [task], now)
        self._activity.set()

    def _wait_for(self, peer: Peer, tasks: Sequence[int], now: float) -> None:
        """Hold new messages for these tasks until their former owner has released all earlier ones."""
        connection = self.connections.get(peer)
        if connection is not None:
            for task in tasks:
                self._moves.turn(task, peer, connection, now)
            connection.watch_releases(tasks)

    def _route(self, group: TaskGroup, inbound: InboundSession) -> bool:
        """Put messages into a queue or the transfer queue; return False if nobody holds their task."""
        if group.task in self.queues or self.queues.is_leaving(group.task):
            self.queues.put(group, inbound)
        elif group.task in self._transfer.owner_of:
            self._transfer.put(group, inbound)
        else:
            return False
        return True

    def place_of(self, task: int) -> str:
        """Return where a task is, as far as this worker knows: LOCAL, or a worker's id."""
        owner = None if task in self.queues else self._transfer.owner_of.get(task)
        return LOCAL if owner is None else owner.worker_id

    def _not_here(self, task: int) -> RefusedError:
        if (error := self.not_ready) is not None:
            return error
        owner = self._transfer.owner_of.get(task)
        if owner is not None:
            return refusals.elsewhere(task, self._settings.worker_id, owner)
        return UnknownTaskError(f"task {task} is not in assignment version {self.assignment_version}")

    def _circling(self, task: int) -> RefusedError:
        return refusals.circling(task, self._settings.worker_id, self._transfer.owner_of.get(task))

    def _send(self, owner: AssignedWorker, inbound: InboundSession, groups: list[TaskGroup]) -> None:
        connection = self.connections.get(owner.peer)
        if inbound.worker_number:
            groups = [group.passed_on(inbound.worker_number) for group in groups]
        for group in self._left_by(connection, inbound, groups):
            self._unroutable(group, inbound)

    def _left_by(
        self, connection: IRelayConnection | None, inbound: InboundSession, groups: list[TaskGroup]
    ) -> list[TaskGroup]:
        """Hand groups to a connection; return those that it does not take because it is closed.

        What its peer would refuse concerns these messages alone: they are given up by name.
        """
        if connection is None:
            return groups
        try:
            if inbound.wants_releases:
                connection.watch_releases([group.task for group in groups])
            return [] if connection.forward(groups, inbound, retain=inbound.wants_releases) else groups
        except ClosedError:
            return groups
        except MessageTooLargeError as error:
            pieces = [piece for group in groups for piece in by_size(group, error.limit_bytes)]
            for fits, group in pieces:
                if not fits:
                    self._give_up(group, inbound, DropReason.TOO_LARGE, str(error))
            return self._left_by(connection, inbound, [group for fits, group in pieces if fits])
        except TuplewireError as error:
            for group in groups:
                self._give_up(group, inbound, DropReason.REFUSED, str(error))
            return []

    def _lose(self, groups: Iterable[TaskGroup]) -> None:
        """Count what a defect has kept from going anywhere: the worker ends, and nobody has taken it over."""
        self._ledger.dropped[DropReason.SHUTDOWN] += sum(map(len, groups))

    def _unroutable(self, group: TaskGroup, inbound: InboundSession) -> None:
        """Give up messages that were accepted for a task that nobody holds any more."""
        self._give_up(group, inbound, DropReason.UNKNOWN_TASK, "nobody holds the task any more")

    def _give_up(self, group: TaskGroup, inbound: InboundSession, reason: DropReason, why: str) -> None:
        if messages := self._log_rate.due(reason, len(group)):
            extra = {"task": group.task, "messages": messages, "reason": reason.value, "why": why}
            logger.warning("messages.dropped", extra=extra)
        self._ledger.dropped[reason] += len(group)
        inbound.release(group.task, len(group), len(group.data))

    def _settled(self, settled: Sequence[Settled]) -> None:
        """Account for messages that other workers have accepted."""
        ledger = self._ledger
        for each in settled:
            if each.dropped is None:
                ledger.acknowledged += each.messages
            elif each.dropped is DropReason.CLOSED:  # only at shutdown: otherwise take_back() returns them
                ledger.dropped[DropReason.SHUTDOWN] += each.messages
            else:
                ledger.dropped[each.dropped] += each.messages
        self._activity.set()

    def _released(self, released: Sequence[Settled]) -> None:
        """Release, to their senders, messages that other workers have released."""
        for each in released:
            if each.dropped is not DropReason.CLOSED:  # at shutdown nothing was consumed by that
                each.token.release(each.task, each.messages, each.size_bytes)
        self._end_moves()
        self._activity.set()

    def _done(self, task: int, done: Sequence[Done]) -> None:
        """Account for messages that a consumer has acknowledged, and release them to their senders."""
        self._consumed(done)
        for each in done:
            self._ledger.acknowledged += each.messages
            each.token.release(task, each.messages, each.size_bytes)
        self._end_moves()
        self._activity.set()

    @property
    def not_ready(self) -> RefusedError | None:
        """See IConnectionCallback. Only by an assignment that means us do we know which tasks there are."""
        if self.assignment is None:
            return refusals.no_assignment(self._settings.worker_id)
        return NotReadyError(self.misnamed) if self.misnamed else None

    def subscribe(self, request: SubscribeRequest, wake: Callable[[], None]) -> ISubscription:
        """See ISubscriptionSource."""
        for cursor in request.cursors:
            if cursor.task in self.taken_here:
                raise PermissionDeniedError(
                    f"task {cursor.task} is run by worker {self._settings.worker_id} itself: "
                    "no other consumer may have its messages"
                )
        return self.queues.subscribe(request, wake)

    # --- load, ledger, the end -------------------------------------------------------------------------

    def loads(self, tasks: Iterable[int] = ()) -> dict[int, float]:
        """Return the known loads, 0 to 1, of these tasks; without tasks, of all."""
        wanted = list(tasks) or [*self._local, *self._transfer.owner_of]
        loads = self.connections.loads([task for task in wanted if task not in self._local])
        loads.update({task: self.queues.load(task) for task in wanted if task in self._local})
        return loads

    def local_loads(self) -> dict[int, float]:
        """Return the load of each local task."""
        return {task: self.queues.load(task) for task in self._local}

    def ledger(self) -> LedgerSnapshot:
        """Return the balance of the whole worker."""
        return self._ledger.snapshot(self.held_messages)

    @property
    def held_messages(self) -> int:
        """Accepted messages that are not settled."""
        return (
            self.queues.pending_messages
            + self._transfer.pending_messages
            + self._moves.pending_messages
            + self.connections.pending_messages
        )

    @property
    def moving_tasks(self) -> int:
        """How many tasks move: some of their messages are on an old route, or wait for one to end."""
        return len(self._moves)

    @property
    def passing(self) -> bool:
        """Whether messages are on the way to other workers, or wait for a move."""
        return bool(self._moves or self.connections.pending_messages)

    def look_again(self) -> None:
        """Have until() look at its condition, which something elsewhere may have changed."""
        self._activity.set()

    async def until(self, condition: Callable[[], bool], deadline: float) -> None:
        """Wait until the condition holds, or the deadline (the loop's time) has passed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                while not condition():
                    self._activity.clear()
                    await self._activity.wait()

    async def close(self, timeout: float) -> None:
        """End consumers and connections; messages that are still queued count as dropped{shutdown}."""
        self.queues.end_consumers(DrainingError("the worker is draining; connect again later"))
        self._ledger.dropped[DropReason.SHUTDOWN] += self.queues.clear()
        self._ledger.dropped[DropReason.SHUTDOWN] += sum(len(group) for group, _ in self._moves.clear())
        await self.connections.close(timeout)
