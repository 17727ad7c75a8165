"""The connecting side of a transport whose streams carry sessions: one session to one worker."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tuplewire.connection.loop import EventLoopThread
from tuplewire.connection.sender import Sender
from tuplewire.group import TaskGroup
from tuplewire.session.pressure import OutboundPressure
from tuplewire_service.messaging.relay_client import RelayClient


class StreamedClient(RelayClient):
    """A Sender in the form of the plug-in contract."""

    def __init__(self, thread: EventLoopThread, sender: Sender) -> None:
        super().__init__(sender, int(sender.address.rpartition(":")[2]))
        self._thread = thread
        self._sender = sender
        thread.begin(sender)

    def expect(self, worker_id: str) -> None:
        """See IRelayConnection."""
        self._sender.receiver_id = worker_id

    def watch(self, pressure: OutboundPressure) -> None:
        """See IRelayConnection."""
        self._sender.pressure.outbound = pressure

    def blocked_tasks(self) -> Collection[int]:
        """See IRelayConnection."""
        return self._sender.blocked_tasks()

    def take_back(self, timeout: float) -> list[tuple[TaskGroup, Any]]:
        """See IRelayConnection."""
        return [] if self._sender.ended else self._thread.run(self._sender.hand_back(timeout))

    async def take_back_async(self, timeout: float) -> list[tuple[TaskGroup, Any]]:
        """See IRelayConnection."""
        return await self._sender.hand_back(timeout)

    def close(self, timeout: float = 10.0) -> None:
        """See IConnection."""
        if not self._sender.ended:
            self._thread.run(self._sender.close(timeout))

    async def close_async(self, timeout: float = 10.0) -> None:
        """See IConnection."""
        await self._sender.close(timeout)

    def abort(self) -> None:
        """See IConnection."""
        if not self._sender.ended:
            self._thread.run(self._sender.abort())
