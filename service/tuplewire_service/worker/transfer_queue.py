"""The transfer queue: outbound messages, and the drainer that groups them by destination worker.

Messages that have queued up by the time the drainer runs go out together. The queue is never full: the
senders' credit bounds it. Source: Storm's transfer queue and `TransferDrainer`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import attrgetter, itemgetter

from tuplewire.connection.sending_end import SendingEnd
from tuplewire.errors import ClosedError, MessageTooLargeError, TuplewireError
from tuplewire.session.ledger import DropReason
from tuplewire.session.pieces import by_size
from tuplewire.values.group import TaskGroup, entry_worker
from tuplewire_service.messaging.base import InboundSession
from tuplewire_service.worker.assignment import AssignedWorker
from tuplewire_service.worker.connections import Connections
from tuplewire_service.worker.drops import Drops
from tuplewire_service.worker.moves import HeldGroup, LostWorkers
from tuplewire_service.worker.routing_table import RoutingTable


class TransferQueue:
    """Holds outbound groups until the drainer's turn. Belongs to the event loop."""

    def __init__(
        self,
        table: RoutingTable,
        connections: Connections,
        lost_workers: LostWorkers,
        drops: Drops,
    ) -> None:
        """Start empty. drops: counts what goes nowhere."""
        self._table = table
        self._connections = connections
        self._lost_workers = lost_workers
        self._drops = drops
        self._loop = asyncio.get_running_loop()
        self._queue: list[HeldGroup] = []
        self._scheduled = False

    def put(self, group: TaskGroup, inbound: InboundSession) -> None:
        """Queue a group; it goes out with the next drain, in the next turn of the loop at the latest."""
        self._queue.append((group, inbound))
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.drain)

    def held_groups(self) -> Iterator[TaskGroup]:
        """Return what waits for the drainer."""
        return (group for group, _ in self._queue)

    def drain(self) -> None:
        """Group everything by destination worker, in order, and send it.

        Messages of several programs stay in their order too: it is that of their entry sequences. An error is
        a defect; what was not sent by then goes to `lose`.
        """
        self._scheduled = False
        queue, self._queue = self._queue, []
        bundles: dict[str, tuple[AssignedWorker, list[HeldGroup]]] = {}
        for group, inbound in queue:
            owner = self._table.owner_of.get(group.task)
            if owner is None:
                self._drops.unroutable(group, inbound)
                continue
            bundles.setdefault(owner.worker_id, (owner, []))[1].append((group, inbound))
        waiting = deque(
            (owner, inbound, [group for group, _ in run])
            for owner, held in bundles.values()
            for inbound, run in groupby(held, itemgetter(1))
        )
        try:
            while waiting:
                owner, inbound, groups = waiting[0]
                self._send(self._connections.get(owner.peer), inbound, groups)
                waiting.popleft()
        finally:
            self._drops.lose(group for _, _, groups in waiting for group in groups)

    def drain_now(self) -> None:
        """Drain for whoever must not hear of a defect: it is the loop's, as it is in a turn of its own."""
        try:
            self.drain()
        except Exception as error:  # noqa: BLE001 - told to the loop
            self._loop.call_exception_handler({"message": "defect in the transfer queue", "exception": error})

    def follow(self, connection: SendingEnd, group: TaskGroup, inbound: InboundSession) -> None:
        """Send messages of another worker at once, after earlier ones, by a connection that these took."""
        self.drain()
        self._send(connection, inbound, [group.out_of_queue(0)])  # earlier ones go in no circle

    def _send(self, connection: SendingEnd | None, inbound: InboundSession, groups: list[TaskGroup]) -> None:
        if inbound.worker_number and connection is not None:
            if lost := self._lost_workers:
                groups = [each.as_redelivered() if lost.had(each, inbound) else each for each in groups]
            groups = list(_passed_on(groups, inbound.worker_number, connection))
        for group in self._left_by(connection, inbound, groups):
            self._drops.unroutable(group, inbound)

    def _left_by(
        self, connection: SendingEnd | None, inbound: InboundSession, groups: list[TaskGroup]
    ) -> list[TaskGroup]:
        """Hand groups to a connection; return those that it does not take because it is closed.

        What its peer would refuse concerns these messages alone: they are given up by name.
        """
        if connection is None:
            return groups
        try:
            if inbound.wants_releases:
                connection.receipts.watch([group.task for group in groups])
            for kept, run in groupby(groups, attrgetter("kept")):
                some = list(run)
                if not connection.buffer.offer(some, inbound, retain=kept):
                    return groups
                groups = groups[len(some) :]
        except ClosedError:
            return groups
        except MessageTooLargeError as error:
            pieces = [piece for group in groups for piece in by_size(group, error.limit_bytes)]
            for fits, group in pieces:
                if not fits:
                    self._drops.give_up(group, inbound, DropReason.TOO_LARGE, str(error))
            return self._left_by(connection, inbound, [group for fits, group in pieces if fits])
        except TuplewireError as error:
            for group in groups:
                self._drops.give_up(group, inbound, DropReason.REFUSED, str(error))
            return []
        else:
            return []


def _passed_on(groups: Iterable[TaskGroup], worker: int, connection: SendingEnd) -> Iterator[TaskGroup]:
    """Return messages of another worker (its number) as they are forwarded, in order with earlier ones."""
    routes: dict[int, int | None] = {}
    for group in groups:
        if group.task not in routes:
            workers = (entry_worker(group.forwarded) or worker,)
            routes[group.task] = connection.window.route_before(group.task, workers, group.entry_sequence)
        yield group.passed_on(worker, routes[group.task] or 0)
