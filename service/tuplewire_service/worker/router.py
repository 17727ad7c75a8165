"""Routes what arrives to the queues of local tasks or to other workers, and accounts for all of it.

Source: Storm's `WorkerState`, with its `transferLocalBatch` and `transfer`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from tuplewire.errors import ClosedError, DrainingError, RefusedError, UnknownTaskError
from tuplewire.group import TaskGroup
from tuplewire.session.delivery import Done
from tuplewire.session.ledger import DropReason, Ledger, LedgerSnapshot, Settled
from tuplewire_service.messaging.base import (
    IConnectionCallback,
    IContext,
    IRelayConnection,
    Origin,
    ReceivedBatch,
    via_of,
)
from tuplewire_service.messaging.subscription import ISubscription, ISubscriptionSource, SubscribeRequest
from tuplewire_service.worker import refusals
from tuplewire_service.worker.assignment import AssignedWorker, Assignment
from tuplewire_service.worker.blocking import LOCAL
from tuplewire_service.worker.connections import Connections, Peer
from tuplewire_service.worker.moves import Moves, Parcel
from tuplewire_service.worker.positions import Positions
from tuplewire_service.worker.publications import Publications
from tuplewire_service.worker.receive_queues import ReceiveQueues
from tuplewire_service.worker.settings import WorkerSettings
from tuplewire_service.worker.transfer import TransferQueue

logger = logging.getLogger(__name__)

_GIVE_UP_SECONDS = 3.0
"""How long a worker may be out of reach, once no assignment names it, before its messages go elsewhere."""


class Router(IConnectionCallback, ISubscriptionSource):
    """Knows which worker holds each task, and brings messages there. Belongs to the event loop.

    Guarantee: what is accepted is acknowledged, dropped for a reason, or held here; see ledger().
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

        context: the transport to other workers. draining: whether they are told that this worker is about to
        go. consumed: told of what consumers have acknowledged.
        """
        self.assignment: Assignment | None = None
        self._settings = settings
        self._consumed = consumed
        self._clock = asyncio.get_running_loop().time
        self._ledger = Ledger()
        self._activity = asyncio.Event()
        self._local: frozenset[int] = frozenset()
        self.queues = ReceiveQueues(settings, incarnation, self._done, self._not_here)
        self._positions = Positions()
        self._publications = Publications(settings.receive_queue_bytes)
        self._moves = Moves(via_of(settings.worker_id, incarnation))
        self.connections = Connections(
            context,
            settings.topology,
            on_settled=self._settled,
            on_released=self._released,
            assignment_version=lambda: self.version,
            draining=draining,
            on_returned=self._returned,
        )
        self._transfer = TransferQueue(asyncio.get_running_loop(), self._send, self._unroutable)

    # --- assignment --------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """The version of the assignment; 0 without one."""
        return self.assignment.version if self.assignment is not None else 0

    def update(self, assignment: Assignment) -> bool:
        """Put a newer assignment in force; False when this version is in force already.

        Raises StaleAssignmentError for an older version, ConfigError for another topology.
        """
        if not assignment.succeeds(self.assignment, self._settings.topology):
            return False
        self._transfer.drain()  # by the old routes
        self.assignment = assignment
        local = assignment.tasks_of(self._settings.worker_id)
        others = [w for w in assignment.workers if w.worker_id != self._settings.worker_id and w.tasks]
        before = self._transfer.owner_of
        self._local = frozenset(local)
        self._publications.limit_bytes = self._settings.receive_queue_bytes * max(1, len(local))
        self._transfer.owner_of = {task: worker for worker in others for task in worker.tasks}
        self._begin_moves(before, self.queues.assign(local))
        self.refresh()
        self._end_moves()
        self._activity.set()
        logger.info(
            "assignment.changed",
            extra={"version": assignment.version, "local_tasks": len(local), "peers": len(others)},
        )
        return True

    def _begin_moves(self, before: Mapping[int, AssignedWorker], gone: Iterable[int]) -> None:
        """Hold what comes for each task that has changed hands, until its old way is empty."""
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

        A former owner that no assignment names any more, and that is out of reach, is given up.
        """
        assigned = (
            {worker.peer for worker in self.assignment.workers} if self.assignment is not None else set()
        )
        needed = {worker.peer: worker for worker in self._transfer.owner_of.values()}
        former = self._moves.peers(since=math.inf)
        overdue = self._moves.peers(since=self._clock() - _GIVE_UP_SECONDS) - assigned
        lost = {peer for peer in overdue if not self.connections.ready(peer)}
        self._moves.lose(lost)
        self.connections.refresh(needed, former - lost, _GIVE_UP_SECONDS)

    def _end_moves(self) -> None:
        """Pass on what has left our queues, and what was held for tasks whose old ways are empty."""
        if self._moves:
            self._reroute(self.queues.leave())
            self._moves.stay(self._transfer.owner_of)
            self._reroute(self._moves.done())

    def _reroute(self, parcels: Iterable[Parcel]) -> None:
        for group, origin in parcels:
            if not self._route(group, origin):
                self._unroutable(group, origin)

    def _returned(self, connection: IRelayConnection, left: Sequence[Parcel]) -> None:
        """Route again what a worker that is gone had not acknowledged, then what waited for it."""
        self._reroute(left)
        self._moves.give_up(connection)
        self._end_moves()

    # --- messages ------------------------------------------------------------------------------------

    def recv(self, batch: ReceivedBatch) -> None:
        """Route a batch: to the queues of local tasks, to the transfer queue, or back as refused."""
        batch.hold()
        origin = batch.origin
        version = batch.assignment_version
        ahead = version > self.version and origin.via
        now_micros = time.time_ns() // 1000
        stale = 0 < version < self.version and not origin.via
        for group in batch.groups:
            if stale and group.task in self._transfer.owner_of:
                owner = self._transfer.owner_of[group.task]
                batch.refuse(group, refusals.stale(group.task, owner, version, self.version))
                continue
            if not origin.via:
                group = self._positions.place(group, now_micros)  # noqa: PLW2901 - the same messages
            if ahead:
                self._open_early(group.task)
            if group.task in self._moves and self._moves.holds(group, origin):
                self._moves.hold(group, origin)
            elif not self._route(group, origin):
                if not group.via:
                    batch.refuse(group, self._not_here(group.task))
                    continue
                self._unroutable(group, origin)  # its sender has heard that it is accepted
            self._ledger.accepted += len(group)

    def publish(self, sink: str, epoch: int, piece: int, groups: Sequence[TaskGroup], *, last: bool) -> int:
        """Take a piece of what a sink writes in an epoch; the last one puts all of them in the queues.

        Returns how many messages that were. Raises the RefusedError for which nothing of the epoch is in a
        queue: NotReadyError, NotLocalError, UnknownTaskError, and those of Publications.
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
        """Hold a task that is ours by an assignment that is still on its way here."""
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
        """Hold what comes for these tasks until a worker is done with all that it was sent for them."""
        connection = self.connections.get(peer)
        if connection is not None:
            for task in tasks:
                self._moves.turn(task, peer, connection, now)
            connection.follow(tasks)

    def _route(self, group: TaskGroup, origin: Origin) -> bool:
        """Put messages on their way; False when nobody holds their task."""
        if group.task in self.queues or self.queues.is_leaving(group.task):
            self.queues.put(group, origin)
        elif group.task in self._transfer.owner_of:
            self._transfer.put(group, origin)
        else:
            return False
        return True

    def place_of(self, task: int) -> str:
        """Return where a task is, as far as this worker knows: LOCAL, or a worker's id."""
        owner = None if task in self.queues else self._transfer.owner_of.get(task)
        return LOCAL if owner is None else owner.worker_id

    def _not_here(self, task: int) -> RefusedError:
        worker_id = self._settings.worker_id
        if self.assignment is None:
            return refusals.no_assignment(worker_id)
        owner = self._transfer.owner_of.get(task)
        if owner is not None:
            return refusals.elsewhere(task, worker_id, owner)
        return UnknownTaskError(f"task {task} is not in assignment version {self.assignment.version}")

    def _send(self, owner: AssignedWorker, origin: Origin, groups: list[TaskGroup]) -> None:
        connection = self.connections.get(owner.peer)
        if origin.via:
            groups = [group.passed_on(origin.via) for group in groups]
        try:
            if connection is not None and origin.eager:
                connection.follow([group.task for group in groups])
            taken = connection is not None and connection.forward(groups, origin, retain=origin.eager)
        except ClosedError:
            taken = False
        if not taken:
            for group in groups:
                self._unroutable(group, origin)

    def _unroutable(self, group: TaskGroup, origin: Origin) -> None:
        """Give up messages that were accepted for a task that nobody holds any more."""
        logger.warning("messages.dropped", extra={"task": group.task, "messages": len(group)})
        self._ledger.dropped[DropReason.UNKNOWN_TASK] += len(group)
        origin.release(group.task, len(group), len(group.data))

    def _settled(self, settled: Sequence[Settled]) -> None:
        """Account for what other workers have taken over."""
        ledger = self._ledger
        for each in settled:
            if each.dropped is None:
                ledger.acknowledged += each.messages
            elif each.dropped is DropReason.CLOSED:  # one that closes for another reason hands it back
                ledger.dropped[DropReason.SHUTDOWN] += each.messages
            else:
                ledger.dropped[each.dropped] += each.messages
        self._activity.set()

    def _released(self, released: Sequence[Settled]) -> None:
        """Give room to those who sent what other workers are done with."""
        for each in released:
            if each.dropped is not DropReason.CLOSED:  # we are ending, and done with nothing by that
                each.token.release(each.task, each.messages, each.size_bytes)
        self._end_moves()
        self._activity.set()

    def _done(self, task: int, done: Sequence[Done]) -> None:
        """Account for what a consumer has acknowledged, and give room to those who sent it."""
        self._consumed(done)
        for each in done:
            self._ledger.acknowledged += each.messages
            each.token.release(task, each.messages, each.size_bytes)
        self._end_moves()
        self._activity.set()

    @property
    def not_ready(self) -> RefusedError | None:
        """See IConnectionCallback. Without an assignment nobody knows which tasks there are."""
        return refusals.no_assignment(self._settings.worker_id) if self.assignment is None else None

    def subscribe(self, request: SubscribeRequest, wake: Callable[[], None]) -> ISubscription:
        """See ISubscriptionSource."""
        return self.queues.subscribe(request, wake)

    # --- load, ledger, the end -------------------------------------------------------------------------

    def loads(self, tasks: Iterable[int] = ()) -> dict[int, float]:
        """Return the load, 0 to 1, of these tasks (none: of all) as far as it is known."""
        wanted = list(tasks) or [*self._local, *self._transfer.owner_of]
        loads = self.connections.loads([task for task in wanted if task not in self._local])
        loads.update({task: self.queues.load(task) for task in wanted if task in self._local})
        return loads

    def local_loads(self) -> dict[int, float]:
        """Return the load of each task that is held here."""
        return {task: self.queues.load(task) for task in self._local}

    def ledger(self) -> LedgerSnapshot:
        """Return the balance of the whole worker."""
        return self._ledger.snapshot(self.held_messages)

    @property
    def held_messages(self) -> int:
        """Messages that were accepted and are not settled."""
        return (
            self.queues.pending_messages
            + self._transfer.pending_messages
            + self._moves.pending_messages
            + self.connections.pending_messages
        )

    @property
    def moving_tasks(self) -> int:
        """Tasks that move: some of their messages are on an old way, or wait for those that are."""
        return len(self._moves)

    @property
    def passing(self) -> bool:
        """Whether messages are on the way to other workers, or wait for a task to move."""
        return bool(self._moves or self.connections.pending_messages)

    async def until(self, condition: Callable[[], bool], deadline: float) -> None:
        """Wait until messages have gone, so that the condition holds, or the deadline has passed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                while not condition():
                    self._activity.clear()
                    await self._activity.wait()

    async def close(self, timeout: float) -> None:
        """End consumers and connections; what is still queued is counted as dropped{shutdown}."""
        self.queues.end_consumers(DrainingError("the worker is draining; connect again later"))
        self._ledger.dropped[DropReason.SHUTDOWN] += self.queues.clear()
        self._ledger.dropped[DropReason.SHUTDOWN] += sum(len(group) for group, _ in self._moves.clear())
        await self.connections.close(timeout)
