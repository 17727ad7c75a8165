"""The connecting side of a transport, but for its I/O."""

from __future__ import annotations

import uuid
from abc import abstractmethod
from typing import Any

from tuplewire.config import SessionSettings
from tuplewire.connection.loop import in_own_thread
from tuplewire.group import TaskGroup
from tuplewire.session.ledger import DropReason
from tuplewire_service.messaging.relay_client import RelayClient
from tuplewire_service.messaging.threaded.threaded_server import Sending


class ThreadedClient(RelayClient):
    """Keeps what is sent until it is settled. From any thread.

    A transport says how to wake and stop its I/O. It calls opened() when a receiver has answered its
    `sending`, next_watched() and next_frame() for what to write next, update() for each acknowledgement,
    take_load() and take_status() for what else the receiver says, lost() when the connection has broken, and,
    from one thread at a time, tell().
    """

    def __init__(self, port: int, worker_id: str, settings: SessionSettings) -> None:
        super().__init__(f"port {port}", settings)
        self._port = port
        self._sender_id = uuid.uuid4().hex
        self._worker_id = worker_id

    # --- for the transport -----------------------------------------------------------------------

    @abstractmethod
    def _stop(self) -> None:
        """End the I/O, and tell() for the last time; called once, without a lock."""

    async def _stop_async(self) -> None:
        """Do the same on a worker's loop; in a thread of its own where nothing else is said."""
        await in_own_thread(self._stop)

    @property
    def sending(self) -> Sending:
        """What to say of itself when connecting."""
        return Sending(
            self._sender_id,
            self._worker_id,
            self._settings.ack_mode,
            self.draining(),
            self._window.receiver_incarnation,
            self._window.acknowledged,
        )

    # --- the end -------------------------------------------------------------------------------------

    def take_back(self, timeout: float) -> list[tuple[TaskGroup, Any]]:
        self.stop_accepting()
        self.wait_settled(timeout)
        if (left := self._take_back()) is None:
            return []
        self._stop()
        return left

    async def take_back_async(self, timeout: float) -> list[tuple[TaskGroup, Any]]:
        self.stop_accepting()
        await self.wait_settled_async(timeout)
        if (left := self._take_back()) is None:
            return []
        await self._stop_async()
        return left

    def close(self, timeout: float = 10.0) -> None:
        self.stop_accepting()
        self.wait_settled(timeout)
        if self.give_up(DropReason.CLOSED):
            self._stop()

    async def close_async(self, timeout: float = 10.0) -> None:
        self.stop_accepting()
        await self.wait_settled_async(timeout)
        if self.give_up(DropReason.CLOSED):
            await self._stop_async()
