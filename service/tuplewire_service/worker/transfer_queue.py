"""The transfer queue: outbound messages, and the drainer that groups them by destination worker.

Messages that have queued up by the time the drainer runs go out together. The queue is never full: the
senders' credit bounds it. Source: Storm's transfer queue and `TransferDrainer`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from tuplewire.group import TaskGroup
from tuplewire_service.messaging.base import InboundSession
from tuplewire_service.worker.assignment import AssignedWorker
from tuplewire_service.worker.routing_table import RoutingTable

Send = Callable[[AssignedWorker, InboundSession, list[TaskGroup]], None]
Unroutable = Callable[[TaskGroup, InboundSession], None]


class TransferQueue:
    """Holds outbound groups until the drainer's turn. Belongs to the event loop."""

    def __init__(
        self,
        table: RoutingTable,
        send: Send,
        unroutable: Unroutable,
        lost: Callable[[Iterable[TaskGroup]], None],
    ) -> None:
        """Start empty.

        send: called with each destination's groups, batch by batch.
        unroutable: called with each group whose task nobody holds.
        lost: called with groups that a defect has kept from being sent.
        """
        self._table = table
        self._loop = asyncio.get_running_loop()
        self._send = send
        self._unroutable = unroutable
        self._lost = lost
        self._queue: list[tuple[TaskGroup, InboundSession]] = []
        self._scheduled = False

    def put(self, group: TaskGroup, inbound: InboundSession) -> None:
        """Queue a group; it goes out in this turn of the loop."""
        self._queue.append((group, inbound))
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.drain)

    @property
    def pending_messages(self) -> int:
        """Messages that wait for the drainer."""
        return sum(map(len, self.held_groups()))

    def held_groups(self) -> Iterator[TaskGroup]:
        """Return what waits for the drainer."""
        return (group for group, _ in self._queue)

    def drain(self) -> None:
        """Group everything by destination worker and inbound, in order, and send it.

        An error is a defect; what was not sent by then goes to `lost`.
        """
        self._scheduled = False
        queue, self._queue = self._queue, []
        bundles: dict[tuple[str, int], tuple[AssignedWorker, InboundSession, list[TaskGroup]]] = {}
        for group, inbound in queue:
            owner = self._table.owner_of.get(group.task)
            if owner is None:
                self._unroutable(group, inbound)
                continue
            bundle = bundles.setdefault((owner.worker_id, id(inbound)), (owner, inbound, []))
            bundle[2].append(group)
        waiting = deque(bundles.values())
        try:
            while waiting:
                self._send(*waiting[0])
                waiting.popleft()
        finally:
            self._lost(group for _, _, groups in waiting for group in groups)
