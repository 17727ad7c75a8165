"""The worker: routes what arrives to its own queues or to other workers, and accounts for all of it.

Source: Storm's `Worker` and `WorkerState`. A user of IContext like anybody else: its server connection feeds
the router, its client connections carry what belongs elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from tuplewire.errors import (
    ClosedError,
    DrainingError,
    RefusedError,
    UnknownTaskError,
)
from tuplewire.group import TaskGroup
from tuplewire.loop import watched
from tuplewire.session.delivery import Done
from tuplewire.session.ledger import DropReason, Ledger, LedgerSnapshot, Settled
from tuplewire_service.messaging.base import (
    IConnectionCallback,
    IContext,
    Intake,
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
from tuplewire_service.worker.servers import Servers
from tuplewire_service.worker.settings import WorkerSettings
from tuplewire_service.worker.status import WorkerSnapshot, WorkerState
from tuplewire_service.worker.timekeeper import Timekeeper
from tuplewire_service.worker.transfer import TransferQueue

logger = logging.getLogger(__name__)

_TICK_SECONDS = 1.0
_GIVE_UP_SECONDS = 3.0
"""How long a worker may be out of reach, once no assignment names it, before its messages go elsewhere."""


class Worker(IConnectionCallback, ISubscriptionSource):
    """One worker of a topology. Every method belongs to the event loop, unless it says otherwise."""

    def __init__(
        self,
        settings: WorkerSettings,
        programs: IContext,
        incarnation: int | None = None,
        peers: IContext | None = None,
    ) -> None:
        """Prepare one.

        programs: the transport that programs use. peers: the one between workers; None: the same.
        """
        self.settings = settings
        self.incarnation = incarnation or time.time_ns()
        self.assignment: Assignment | None = None
        self.state = WorkerState.STARTING
        self._clock = asyncio.get_running_loop().time
        self.servers = Servers(programs, peers, settings.topology)
        self._ledger = Ledger()
        self._listeners: list[Callable[[], None]] = []
        self._activity = asyncio.Event()
        self._tickers: list[asyncio.Task[None]] = []
        self._local: frozenset[int] = frozenset()
        self._queues = ReceiveQueues(settings, self.incarnation, self._done, self._not_here)
        self._positions = Positions()
        self._publications = Publications(settings.receive_queue_bytes)
        self._moves = Moves(via_of(settings.worker_id, self.incarnation))
        self._connections = Connections(
            peers or programs,
            settings.topology,
            on_settled=self._settled,
            on_released=self._released,
            assignment_version=self._assignment_version,
            draining=lambda: self.state is WorkerState.DRAINING,
            on_returned=self._returned,
        )
        self.times = Timekeeper(
            self._queues, self._connections, self.servers, self._place_of, settings.metrics_tasks
        )
        self._transfer = TransferQueue(asyncio.get_running_loop(), self._send, self._unroutable)

    # --- life ------------------------------------------------------------------------------------

    async def start(self, port: int, peers_port: int = 0) -> None:
        """Bind the port, and that of the peers' own transport; BindError when that fails."""
        await self.servers.start(port, peers_port, self)
        self._tickers = [
            watched(asyncio.create_task(self._tick(), name="tick")),
            watched(asyncio.create_task(self.times.look_around(), name="look around")),
        ]

    async def _tick(self) -> None:
        while True:
            self._check_ready()
            self._report_load()
            self._refresh()
            await asyncio.sleep(_TICK_SECONDS if self.state is WorkerState.READY else _TICK_SECONDS / 20)

    def _check_ready(self) -> None:
        if self.state is WorkerState.STARTING and not self.not_ready_because:
            self._enter(WorkerState.READY)

    def _enter(self, state: WorkerState) -> None:
        self.state = state
        logger.info("worker.state", extra={"state": state.value})
        for listener in self._listeners:
            listener()

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call the listener whenever the state changes."""
        self._listeners.append(listener)

    @property
    def not_ready_because(self) -> str:
        """What is missing, in words; empty when nothing is."""
        if self.state in {WorkerState.DRAINING, WorkerState.STOPPED}:
            return f"the worker is {self.state.value}"
        if self.assignment is None:
            return str(refusals.no_assignment(self.settings.worker_id))
        if self.state is WorkerState.STARTING and (missing := self._connections.not_ready):
            return f"not connected yet to {', '.join(missing)}"
        return ""

    async def drain(self, deadline_seconds: float) -> LedgerSnapshot:
        """Finish and stop: take nothing new, deliver and pass on what is held, close; return the balance.

        Moves come first, for at most half of the time: what waits here for them, or elsewhere after we have
        passed it on, may wait for messages that other workers have for us, and who comes in our place knows
        of no move. That holds for those that begin meanwhile, too.

        What nobody has taken by the deadline is counted as dropped{shutdown}. Its senders are not told that
        it is done with: those that keep it (mode `processed`) send it again to whoever takes our place.
        """
        now = self._clock()
        deadline = now + deadline_seconds
        moves_deadline = now + deadline_seconds / 2
        self._enter(WorkerState.DRAINING)

        def passing() -> bool:
            return bool(self._moves or self._connections.pending_messages)

        def stays_open() -> bool:
            return passing() and self._clock() < moves_deadline

        def finished() -> bool:
            return stays_open() or not (self._moves or self._held_messages())

        while True:
            await self.servers.stop_intake(Intake.WORKERS)
            await self._until(lambda: not passing(), moves_deadline)
            await self.servers.stop_intake(Intake.LEAVING_WORKERS)
            await self._until(finished, deadline)
            if not stays_open():
                await self.servers.stop_intake(Intake.NOBODY)
                await self._until(finished, deadline)  # what has come before that
            if not stays_open():
                break
        self._queues.end_consumers(DrainingError("the worker is draining; connect again later"))
        self._ledger.dropped[DropReason.SHUTDOWN] += self._queues.clear()
        self._ledger.dropped[DropReason.SHUTDOWN] += sum(len(group) for group, _ in self._moves.clear())
        for ticker in self._tickers:
            ticker.cancel()
        await self._connections.close(max(0.1, deadline - self._clock()))
        await self.servers.close()
        self._enter(WorkerState.STOPPED)
        return self.ledger()

    async def _until(self, condition: Callable[[], bool], deadline: float) -> None:
        """Wait until messages have gone, so that the condition holds, or the deadline has passed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                while not condition():
                    self._activity.clear()
                    await self._activity.wait()

    def _held_messages(self) -> int:
        return (
            self._queues.pending_messages
            + self._transfer.pending_messages
            + self._moves.pending_messages
            + self._connections.pending_messages
        )

    def _assignment_version(self) -> int:
        return self.assignment.version if self.assignment is not None else 0

    # --- assignment --------------------------------------------------------------------------------

    def update_assignment(self, assignment: Assignment) -> bool:
        """Put a newer assignment in force; False when this version is in force already.

        Raises StaleAssignmentError for an older version, ConfigError for another topology.
        """
        if not assignment.succeeds(self.assignment, self.settings.topology):
            return False
        self._transfer.drain()  # by the old routes
        self.assignment = assignment
        local = assignment.tasks_of(self.settings.worker_id)
        others = [w for w in assignment.workers if w.worker_id != self.settings.worker_id and w.tasks]
        before = self._transfer.owner_of
        self._local = frozenset(local)
        self._publications.limit_bytes = self.settings.receive_queue_bytes * max(1, len(local))
        self._transfer.owner_of = {task: worker for worker in others for task in worker.tasks}
        self._begin_moves(before, self._queues.assign(local))
        self._refresh()
        self._end_moves()
        self._activity.set()
        logger.info(
            "assignment.changed",
            extra={"version": assignment.version, "local_tasks": len(local), "peers": len(others)},
        )
        self._check_ready()
        return True

    def _begin_moves(self, before: Mapping[int, AssignedWorker], gone: Iterable[int]) -> None:
        """Hold what comes for each task that has changed hands, until its old way is empty."""
        now = self._clock()
        for task in gone:
            self._moves.leave(task, partial(self._queues.left, task), now)
        lost: dict[Peer, list[int]] = {}
        for task, owner in before.items():
            after = self._transfer.owner_of.get(task)
            if after is None or after.peer != owner.peer:
                lost.setdefault(owner.peer, []).append(task)
        for peer, tasks in lost.items():
            self._wait_for(peer, tasks, now)

    def _refresh(self) -> None:
        """Keep the connections to the owners of tasks, and to former owners until their tasks have moved.

        A former owner that no assignment names any more, and that is out of reach, is given up.
        """
        assigned = (
            {worker.peer for worker in self.assignment.workers} if self.assignment is not None else set()
        )
        needed = {worker.peer: worker for worker in self._transfer.owner_of.values()}
        former = self._moves.peers(since=math.inf)
        overdue = self._moves.peers(since=self._clock() - _GIVE_UP_SECONDS) - assigned
        lost = {peer for peer in overdue if not self._connections.ready(peer)}
        self._moves.lose(lost)
        self._connections.refresh(needed, former - lost, _GIVE_UP_SECONDS)

    def _end_moves(self) -> None:
        """Pass on what has left our queues, and what was held for tasks whose old ways are empty."""
        if self._moves:
            self._reroute(self._queues.leave())
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
        ahead = version > self._assignment_version() and origin.via
        now_micros = time.time_ns() // 1000
        stale = 0 < version < self._assignment_version() and not origin.via
        for group in batch.groups:
            if stale and group.task in self._transfer.owner_of:
                owner = self._transfer.owner_of[group.task]
                batch.refuse(group, refusals.stale(group.task, owner, version, self._assignment_version()))
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
        queue: NotReadyError, DrainingError, NotLocalError, UnknownTaskError, and those of Publications.
        """
        if (error := self.not_ready) is not None:
            raise error
        if self.state in {WorkerState.DRAINING, WorkerState.STOPPED}:
            raise DrainingError("the worker is draining; publish again later, or at another one")
        self._publications.add(sink, epoch, piece, groups, time.monotonic())
        if not last:
            return 0
        collected = self._publications.collected(sink)
        for group in collected:
            if group.task not in self._queues:
                raise self._not_here(group.task)
        self._publications.publish(sink, collected)
        self.recv(ReceivedBatch.arrived(collected, self._publications))
        return sum(map(len, collected))

    def _open_early(self, task: int) -> None:
        """Hold a task that is ours by an assignment that is still on its way here."""
        if not self._queues.open(task):
            return
        self._transfer.drain()  # by the old routes
        now = self._clock()
        self._moves.leave(task, partial(self._queues.left, task), now)
        owner = self._transfer.owner_of.get(task)
        if owner is not None:
            self._wait_for(owner.peer, [task], now)
        self._activity.set()

    def _wait_for(self, peer: Peer, tasks: Sequence[int], now: float) -> None:
        """Hold what comes for these tasks until a worker is done with all that it was sent for them."""
        connection = self._connections.get(peer)
        if connection is not None:
            for task in tasks:
                self._moves.turn(task, peer, connection, now)
            connection.follow(tasks)

    def _route(self, group: TaskGroup, origin: Origin) -> bool:
        """Put messages on their way; False when nobody holds their task."""
        if group.task in self._queues or self._queues.is_leaving(group.task):
            self._queues.put(group, origin)
        elif group.task in self._transfer.owner_of:
            self._transfer.put(group, origin)
        else:
            return False
        return True

    def _place_of(self, task: int) -> str:
        owner = None if task in self._queues else self._transfer.owner_of.get(task)
        return LOCAL if owner is None else owner.worker_id

    def _not_here(self, task: int) -> RefusedError:
        worker_id = self.settings.worker_id
        if self.assignment is None:
            return refusals.no_assignment(worker_id)
        owner = self._transfer.owner_of.get(task)
        if owner is not None:
            return refusals.elsewhere(task, worker_id, owner)
        return UnknownTaskError(f"task {task} is not in assignment version {self.assignment.version}")

    def _send(self, owner: AssignedWorker, origin: Origin, groups: list[TaskGroup]) -> None:
        connection = self._connections.get(owner.peer)
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
            elif (
                each.dropped is DropReason.CLOSED
            ):  # a connection that closes for another reason hands it back
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
        self.times.done(done)
        for each in done:
            self._ledger.acknowledged += each.messages
            each.token.release(task, each.messages, each.size_bytes)
        self._end_moves()
        self._activity.set()

    @property
    def not_ready(self) -> RefusedError | None:
        """See IConnectionCallback. Without an assignment nobody knows which tasks there are."""
        return refusals.no_assignment(self.settings.worker_id) if self.assignment is None else None

    def subscribe(self, request: SubscribeRequest, wake: Callable[[], None]) -> ISubscription:
        """See ISubscriptionSource."""
        return self._queues.subscribe(request, wake)

    # --- load and status -----------------------------------------------------------------------------

    def loads(self, tasks: Iterable[int] = ()) -> dict[int, float]:
        """Return the load, 0 to 1, of these tasks (none: of all) as far as it is known."""
        wanted = list(tasks) or [*self._local, *self._transfer.owner_of]
        loads = self._connections.loads([task for task in wanted if task not in self._local])
        loads.update({task: self._queues.load(task) for task in wanted if task in self._local})
        return loads

    def _report_load(self) -> None:
        if self._local and self.state is WorkerState.READY:
            self.servers.send_load_metrics({task: self._queues.load(task) for task in self._local})

    def ledger(self) -> LedgerSnapshot:
        """Return the balance of the whole worker."""
        return self._ledger.snapshot(self._held_messages())

    def snapshot(self) -> WorkerSnapshot:
        """Return the worker as it is."""
        statistics = self.servers.statistics()
        return WorkerSnapshot(
            worker_id=self.settings.worker_id,
            incarnation=self.incarnation,
            topology=self.settings.topology,
            state=self.state,
            assignment_version=self._assignment_version(),
            ledger=self.ledger(),
            peers=self._connections.snapshot(),
            tasks=self._queues.snapshot(),
            received=statistics.received,
            timings=self.times.timings(),
            redelivered_messages=self._queues.redelivered_messages,
            refused=dict(statistics.refused),
            addresses=tuple(self.servers.addresses),
            peer_addresses=tuple(self.servers.peer_addresses),
            moving_tasks=len(self._moves),
            not_ready_because=self.not_ready_because,
        )
