"""The transfer queue: outbound messages, and the drainer that groups them by destination worker.

Source: Storm's transfer queue and `TransferDrainer`. Whatever has queued up by the time the drainer runs goes
out together. There is nothing to wait for: the senders' credit bounds what can be here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from tuplewire.group import TaskGroup
from tuplewire_service.messaging.base import Origin
from tuplewire_service.worker.assignment import AssignedWorker

Send = Callable[[AssignedWorker, Origin, list[TaskGroup]], None]
Unroutable = Callable[[TaskGroup, Origin], None]


class TransferQueue:
    """Holds outbound groups until the drainer's turn. Belongs to the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, send: Send, unroutable: Unroutable) -> None:
        """Start empty.

        send: gets each destination's groups, batch by batch. unroutable: gets a group whose task nobody
        holds.
        """
        self.owner_of: Mapping[int, AssignedWorker] = {}
        """Which worker holds each task; replaced when the assignment changes."""
        self._loop = loop
        self._send = send
        self._unroutable = unroutable
        self._queue: list[tuple[TaskGroup, Origin]] = []
        self._scheduled = False

    def put(self, group: TaskGroup, origin: Origin) -> None:
        """Queue a group; it goes out in this turn of the loop."""
        self._queue.append((group, origin))
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.drain)

    @property
    def pending_messages(self) -> int:
        """Messages that wait for the drainer."""
        return sum(len(group) for group, _ in self._queue)

    def drain(self) -> None:
        """Group everything by destination worker and origin, in order, and send it."""
        self._scheduled = False
        queue, self._queue = self._queue, []
        bundles: dict[tuple[str, int], tuple[AssignedWorker, Origin, list[TaskGroup]]] = {}
        for group, origin in queue:
            owner = self.owner_of.get(group.task)
            if owner is None:
                self._unroutable(group, origin)
                continue
            bundle = bundles.setdefault((owner.worker_id, id(origin)), (owner, origin, []))
            bundle[2].append(group)
        for owner, origin, groups in bundles.values():
            self._send(owner, origin, groups)
