"""Routes each message to the queue of a local task or to another worker, and accounts for all messages.

Used by sinks.py and worker.py, which passes in batches (`recv`) and assignments (`update_assignment`). Owns
the routing table, receive queues, connections, moves and ledger. Call only from the event loop.
Source: Storm's `WorkerState` (`transferLocalBatch`, `transfer`). Design: docs/design/moves.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain, groupby
from operator import attrgetter

from tuplewire.connection.sending_end import SendingEnd
from tuplewire.errors import DrainingError, RefusedError
from tuplewire.session.durations import Durations
from tuplewire.session.ledger import DropReason, Ledger, LedgerSnapshot, SettledMessages
from tuplewire.session.pressure import OutboundPressure
from tuplewire.session.send_events import SendEvents
from tuplewire.settings.addresses import Peer
from tuplewire.text.events import event_logger
from tuplewire.values.group import MAX_UNQUEUED_HOPS, TaskGroup, worker_number
from tuplewire.wire.messaging_pb2 import Departure, SinkEpoch, Subscribe, Successor
from tuplewire_service.messaging.base import IConnectionCallback, InboundSession, ReceivedBatch
from tuplewire_service.messaging.recv_service import ISubscription, ISubscriptionSource
from tuplewire_service.messaging.server_stream import AccessRights
from tuplewire_service.messaging.streamed_transport import StreamedContext
from tuplewire_service.worker.assignment import Assignment
from tuplewire_service.worker.connections import REROUTE_SECONDS, Connections
from tuplewire_service.worker.delivery import AckedGroup, release
from tuplewire_service.worker.departures import Departures, Successors, successors_to_wire
from tuplewire_service.worker.moves import EntrySequences, HeldGroup, Moves
from tuplewire_service.worker.queue_subscription import QueueConsumers
from tuplewire_service.worker.receive_queues import ReceiveQueues
from tuplewire_service.worker.rejections import Rejections
from tuplewire_service.worker.routing_table import LOCAL, RoutingTable
from tuplewire_service.worker.taps import Taps
from tuplewire_service.worker.transfer_queue import TransferQueue
from tuplewire_service.worker.worker_observer import WorkerObserver
from tuplewire_service.worker.worker_settings import WorkerSettings

logger = event_logger(__name__)


class Router(IConnectionCallback, ISubscriptionSource):
    """Routes a worker's messages. Each accepted one is acknowledged, dropped or held; see ledger()."""

    def __init__(
        self,
        settings: WorkerSettings,
        incarnation: int,
        context: StreamedContext,
        is_draining: Callable[[], bool],
        on_departures: Callable[[Sequence[Departure], Sequence[Departure]], None],
        observer: WorkerObserver | None = None,
    ) -> None:
        """On a departure report, call `on_departures(reported, new)`; the new ones are without sinks."""
        self.table, self.newest_peer_version = RoutingTable(settings.worker_id), 0
        """The owners of tasks, and the newest assignment version that another worker has reported."""
        self._settings = settings
        self.observer = observer
        self._ledger = Ledger()
        self.changed = asyncio.Event()  # set after each change that wait_until() may wait for
        self.dead_peers: set[Peer] = set()  # until they are assigned again
        self.end_to_end = Durations()  # from acceptance by the sender to acknowledgement by the consumer
        self.rejections = Rejections(settings, self._ledger, self.recv, self.can_route)
        self.queues = ReceiveQueues(settings, self._on_acknowledged, self.table.not_local_error, observer)
        self.consumers = QueueConsumers(incarnation, self.queues, self.rejections)
        self._entry_sequences = EntrySequences()
        self.own_number = worker_number(settings.worker_id, incarnation)  # as an entry worker
        self.departures, self.taps = Departures(), Taps()
        self._on_departures = on_departures
        self._is_draining, self._closing = is_draining, False
        self.pressure = OutboundPressure()  # on all connections to other workers
        self.pressure.find_example = None if observer is None else observer.find_example
        clock = asyncio.get_running_loop().time
        events = SendEvents(
            on_settled=self._on_settled,
            on_released=self._on_released,
            on_disconnected=partial(asyncio.get_running_loop().call_soon, self.refresh_connections),
            on_departed=self.on_workers_departed,
            get_departures=lambda: list(self.departures.values()),
            get_assignment_version=partial(getattr, self.table, "version"),
            is_draining=is_draining,
            pressure=self.pressure,
        )
        self.connections = Connections(context, settings.topology, events, self._on_returned)
        successors = Successors(self.own_number, incarnation)
        self._moves = Moves(successors, self.connections.by_peer.get, self.queues.matches_assignment, clock)
        lost_workers = self.consumers.lost_workers
        self._transfer = TransferQueue(self.table, self.connections, lost_workers, self._ledger)

    def __repr__(self) -> str:
        tasks = f"local_tasks={len(self.queues.by_task)} moving_tasks={self.move_count}"
        version = f"version={self.assignment_version}"
        return f"<Router {self._settings.worker_id} {version} {tasks} {self.connections!r}>"

    async def wait_until(self, condition: Callable[[], bool], deadline: float) -> None:
        """Wait until the condition holds, or the deadline (the loop's time) has passed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                while not condition():
                    self.changed.clear()
                    await self.changed.wait()

    @property
    def assignment_version(self) -> int:
        return self.table.version

    def update_assignment(self, assignment: Assignment, *, force: bool = False) -> bool:
        """Apply a newer assignment; return False for the current one. See Assignment.replaces().

        1. A task is removed here: its queue is delivered no further, and sent to the new owner.
        2. Another worker loses a task: new messages wait until it has released the earlier ones.
        """
        if not assignment.replaces(self.table.assignment, self._settings.topology, force=force):
            return False
        self._transfer.send_all()  # to the owners of the old assignment
        previous_owners = self.table.other_owners
        self.table.replace(assignment)
        self.dead_peers.difference_update(worker.peer for worker in assignment.workers)
        for task in self.queues.set_local_tasks(self.table.local_tasks):
            self.rejections.release_originals(task)  # 1. The move waits until all messages are released.
            self._moves.get_or_start(task)
        after = {worker.peer: worker.tasks for worker in self.table.other_owners}
        for worker in previous_owners:
            tasks = after.get(worker.peer, ())
            if tasks != worker.tasks:
                # 2. A worker that restarts at another address is another peer: the old one loses all tasks.
                lost_tasks = sorted(set(worker.tasks).difference(tasks))
                self._hold_behind_old_route(worker.peer, lost_tasks)
                self._forget_sequences(lost_tasks)
        self.refresh_connections()
        self._advance_moves()
        self.changed.set()
        counts = {"local_tasks": len(self.table.local_tasks), "peers": len(self.table.other_owners)}
        logger.info("assignment.changed", extra={"version": assignment.version, **counts})
        dead_letter_task = self._settings.dead_letter_task
        if dead_letter_task is not None and dead_letter_task not in self.table.owner_by_task:
            logger.warning("dead_letter_task.not_assigned", extra={"task": dead_letter_task})
        return True

    def refresh_connections(self) -> None:
        """Connect to the owners of outbound tasks, and to previous owners until their tasks have moved.

        A previous owner is lost if it is unreachable and not assigned. For drains, see docs/design/moves.md.
        """
        if self._closing:
            return
        # Departures come first: afterwards, the messages of a departed worker count as released.
        self._moves.successors.refresh(self.departures, self.connections.unreleased_by_peer())
        successors = self._moves.successors.peers
        needed = self.table.required_peers(successors, include_all=self._is_draining() and self.must_announce)
        previous_owners = self._moves.previous_owners()
        overdue = self._moves.previous_owners(REROUTE_SECONDS) - {each.peer for each in self.table.workers}
        lost = {peer for peer in overdue if not self.connections.is_connected(peer)}
        lost |= previous_owners & self.dead_peers
        self._moves.mark_lost(lost)
        kept = (previous_owners | successors).union(each.peer for each in self.table.other_owners) - lost
        self.connections.refresh(needed, kept, lost)
        self.connections.release_departed(self.departures.without_messages_in_flight)
        # Reroute messages that departed workers had not accepted, after those that they had forwarded.
        self._transfer.send_all()  # before the connections are replaced
        ended = self.connections.find_ended_peers(self.departures, self._moves.previous_owners())
        for peer, tasks in ended.items():
            self._hold_behind_old_route(peer, tuple(tasks))
            self._moves.mark_lost({peer})
            self.connections.replace(peer)

    def _advance_moves(self, tasks: Iterable[int] | None = None) -> None:
        """Route messages to tasks (None: all) that leave local queues, or wait behind empty old routes."""
        if not self._moves.by_task:
            return
        moving = self._moves.filter_moving(tasks)
        # Queues are emptied first: their messages are older than the held ones.
        self._reroute(self._moves.as_dequeued(self.queues.take_leaving(moving)))
        self._reroute(self._moves.take_ready(moving, self.table.owner_by_task))
        self._forget_sequences(moving)

    def _forget_sequences(self, tasks: Iterable[int]) -> None:
        """Forget the entry sequences of tasks without an owner and without messages in transit."""
        for task in tasks:
            if not (task in self._moves.by_task or self.can_route(task)):
                self._entry_sequences.forget(task)

    def can_route(self, task: int) -> bool:
        """Return True if messages for a task can be queued here or forwarded."""
        queues = self.queues
        return task in queues.by_task or task in self.table.owner_by_task or task in queues.leaving

    def _reroute(self, held_groups: Iterable[HeldGroup]) -> None:
        waiting = deque(held_groups)
        try:
            while waiting:
                group, inbound = waiting[0]
                if not self._route(group, inbound):
                    self._transfer.drop_unroutable(group, inbound)
                waiting.popleft()
        finally:
            self._transfer.count_lost(group for group, _ in waiting)
            asyncio.get_running_loop().call_soon(self._transfer.send_all)

    def _on_returned(self, connection: SendingEnd, groups: Sequence[HeldGroup]) -> None:
        """Reroute the unacknowledged messages of a lost worker, then the messages that waited for them."""
        self._reroute(self._moves.remove_routes(connection, groups))
        self._advance_moves()

    def recv(self, batch: ReceivedBatch) -> None:
        """Route a batch to local queues or the transfer queue, or refuse its messages.

        1. A program sends to a task of another worker by an old assignment: refused.
        2. Workers forward the messages in a cycle: refused.
        3. No worker holds the task of a program's messages: refused. Otherwise they get entry sequences.
        4. The sending worker has a newer assignment: the task counts as local until the assignment arrives.
        5. Earlier messages are on an old route: the messages wait. Otherwise _route() queues or sends them.
        6. No worker owns the task: refused, or dropped if the messages were forwarded before.
        """
        batch.held = True
        inbound, version, moving = batch.inbound, batch.assignment_version, self._moves.by_task
        sender_is_ahead = version > self.table.version and inbound.worker_number
        if sender_is_ahead:
            self.newest_peer_version = max(self.newest_peer_version, version)
        now_micros, assign_sequence = time.time_ns() // 1000, self._entry_sequences.assign_sequence
        # 1. Only programs are refused for an old version: no worker has accepted their messages yet.
        stale = 0 < version < self.table.version and not inbound.worker_number
        for group in batch.groups:
            task = group.task
            if stale and self.place_of(task) != LOCAL:
                batch.refuse(group, self.table.stale_error(task, version))
                continue
            # 2. Contradictory assignments could forward a message in a cycle.
            if group.path and group.unqueued_hops > MAX_UNQUEUED_HOPS and task not in self.queues.by_task:
                batch.refuse(group, self.table.cycle_error(task))
                continue
            if not inbound.worker_number:
                if not (task in self.table.owner_by_task or task in moving or self.can_route(task)):  # 3.
                    batch.refuse(group, self.table.not_local_error(task))
                    continue
                group = assign_sequence(group, now_micros, retained_upstream=inbound.awaits_releases)  # noqa: PLW2901
            if sender_is_ahead and self.queues.open_early(task):
                self._start_early_move(task)  # 4. By this newer assignment, the task belongs here.
            # 5. and 6.
            held = task in moving and self._moves.try_hold(group, inbound)
            if not held and not self._route(group, inbound):
                if not group.path:
                    batch.refuse(group, self.table.not_local_error(task))  # 6.
                    continue
                self._transfer.drop_unroutable(group, inbound)  # 6. Its entry worker has accepted it.
            self._ledger.accepted += group.count
        self._transfer.send_all()
        if self.taps.open_taps:
            self.taps.offer(batch, self.place_of)

    def _start_early_move(self, task: int) -> None:
        """Start the move of a task to this worker before the assignment that names it arrives."""
        self._transfer.send_all()  # to the known owner, before the move starts
        self._moves.get_or_start(task)
        if (owner := self.table.owner_by_task.get(task)) is not None:
            self._hold_behind_old_route(owner.peer, [task])
        self.changed.set()

    def _hold_behind_old_route(self, peer: Peer, tasks: Sequence[int]) -> None:
        """Hold new messages for these tasks until their previous owner has released all earlier ones."""
        if (connection := self.connections.by_peer.get(peer)) is not None:
            for task in tasks:
                self._moves.add_old_route(task, peer, connection)
            connection.ack_handler.watch_releases(tasks)

    def _route(self, group: TaskGroup, inbound: InboundSession) -> bool:
        """Queue messages locally or for transfer; return False if no worker owns their task."""
        if self.observer is not None:
            inbound = self.observer.wrap_forwarded(group, inbound, self.place_of)
        owner, moves = self.table.owner_by_task.get(group.task), self._moves
        move = connection = None
        if moves.by_task or moves.successors.by_task:  # otherwise all messages of a task take one route
            move, connection = moves.destination_of(group, inbound, None if owner is None else owner.peer)
        if connection is not None:
            self._transfer.send_behind(connection, group, inbound)
        elif not self.queues.put(group, inbound):
            if owner is None:
                return False
            # record_route() needs the connection that send_all() will use.
            connection = None if move is None else self.connections.get_or_open(owner.peer)
            self._transfer.queue.append((group, inbound))
        if move is not None:
            move.record_route(group, inbound, connection)
        return True

    def place_of(self, task: int) -> str:
        """Return a task's location in the current assignment: a worker id; LOCAL if here or unowned."""
        owner = None if task in self.queues.by_task else self.table.owner_by_task.get(task)
        return LOCAL if owner is None else owner.worker_id

    def _on_settled(self, settled: Sequence[SettledMessages]) -> None:
        """Account for messages that other workers have acknowledged, or that were dropped."""
        for each in settled:
            if each.drop_reason is None:
                self._ledger.acknowledged += each.messages
            else:  # CLOSED occurs only at shutdown: otherwise withdraw() returns them
                reason = DropReason.SHUTDOWN if each.drop_reason is DropReason.CLOSED else each.drop_reason
                self._ledger.dropped[reason] += each.messages
        self.changed.set()
        if self.observer is not None:
            self.observer.on_settled(settled)

    def _on_released(self, released: Sequence[SettledMessages]) -> None:
        """Release messages to their senders once other workers have released them."""
        if not self._closing:  # nothing is consumed after the close
            for task, some in groupby(released, attrgetter("task")):
                release(task, some)
        self._advance_moves({each.task for each in released} if self._moves.by_task else ())
        self.changed.set()

    def _on_acknowledged(self, task: int, done: Sequence[AckedGroup]) -> None:
        """Account for messages that a consumer has acknowledged, and release them to their senders."""
        now_micros = time.time_ns() // 1000
        for each in done:
            if each.accepted_micros and not each.rejected:
                self.end_to_end.add((now_micros - each.accepted_micros) / 1e6, each.messages)
            self._ledger.acknowledged += 0 if each.rejected else each.messages
        release(task, done)
        self._advance_moves((task,))
        self.changed.set()
        if self.observer is not None:
            self.observer.on_processed(task, self.end_to_end)

    @property
    def not_ready_error(self) -> RefusedError | None:
        return self.table.not_ready_error

    def subscribe(
        self, request: Subscribe, access: AccessRights, address: str, wake: Callable[[], None]
    ) -> ISubscription:
        return self.consumers.subscribe(request, access, address, wake)

    def on_worker_connection(self, number: int, *, connected: bool) -> None:
        self.consumers.lost_workers.on_worker_connection(number, connected=connected)

    def on_workers_departed(self, departures: Sequence[Departure]) -> None:
        new = self.departures.merge(departures)
        self._on_departures(departures, new)
        self._moves.successors.add_departures(new, self.connections.unreleased_by_peer())
        self.refresh_connections()
        self._advance_moves()

    def ledger(self) -> LedgerSnapshot:
        """Return the ledger of the whole worker."""
        return self._ledger.snapshot(self.pending_messages)

    @property
    def pending_messages(self) -> int:
        """Number of accepted messages that are not settled."""
        waiting = sum(map(len, self._waiting_groups())) + self.connections.pending_messages
        return self.queues.pending_messages + waiting

    def _waiting_groups(self) -> Iterable[TaskGroup]:
        outbound = (group for group, _ in self._transfer.queue)
        rejected = (copy.group for copy in self.rejections.waiting_copies)
        return chain(outbound, self._moves.held_groups(), rejected)

    @property
    def unretained_messages(self) -> int:
        """Number of held messages that are not known to be stored by another process."""
        waiting = sum(group.count for group in self._waiting_groups() if not group.retained_upstream)
        return self.queues.unretained_messages + waiting + self.connections.unretained_messages

    @property
    def move_count(self) -> int:
        """Number of tasks in a move: some of their messages are on an old route, or wait for it to empty."""
        return len(self._moves.by_task)

    def _successors(self) -> Collection[Successor]:
        unreleased = self.connections.unreleased_by_peer()
        return successors_to_wire(self._moves.successors.snapshot_at_shutdown(unreleased))

    @property
    def must_announce(self) -> bool:
        """True if the departure matters to peers: messages were forwarded, or queued ones remain."""
        return bool(self.queues.pending_messages or self._successors())

    async def close(self, timeout: float, sinks: Sequence[SinkEpoch], unpublished: Mapping[int, int]) -> None:
        """End consumers and connections. Queued and unpublished messages count as dropped{shutdown}."""
        self._closing = True
        self.queues.end_consumers(DrainingError("the worker is draining; connect again later"))
        in_flight = sum(map(len, self._waiting_groups())) + self.connections.unretained_messages
        dropped = Counter(self.queues.queued_by_task()) + Counter(unpublished)
        departure = Departure(dropped_messages=dropped, in_flight_messages=in_flight, sink_epochs=sinks)
        departure.incarnation = self.consumers.incarnation
        departure.successors.extend(self._successors())
        self.departures.add(departure)
        self._ledger.accepted += sum(unpublished.values())
        self._ledger.dropped[DropReason.SHUTDOWN] += self.queues.clear() + sum(unpublished.values())
        self._transfer.count_lost(chain(self.rejections.close(), self._moves.held_groups()))
        self._moves.by_task.clear()
        await self.connections.close(timeout)
