"""The connecting side of a transport, but for its I/O."""

from __future__ import annotations

import uuid
from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import Any

from tuplewire.config import SessionSettings
from tuplewire.connection.loop import in_own_thread
from tuplewire.connection.sending_end import SendingEnd
from tuplewire.group import TaskGroup
from tuplewire.session.frame import OutFrame
from tuplewire.session.ledger import DropReason
from tuplewire.session.receive import AckUpdate
from tuplewire.session.send import Opened
from tuplewire_service.messaging.relay_client import RelayClient
from tuplewire_service.messaging.threaded.receiving import Sending


class ThreadedClient(RelayClient):
    """Keeps what is sent until it is settled. From any thread.

    A transport calls opened() when a receiver has answered its `sending`, next_frame() for what to write
    next, update() for each acknowledgement, lost() when the connection has broken, and, from one thread at a
    time, tell().
    """

    def __init__(self, port: int, worker_id: str, settings: SessionSettings) -> None:
        super().__init__(SendingEnd(f"port {port}", settings, self._wake), port)
        self._sender_id = uuid.uuid4().hex
        self._worker_id = worker_id
        self._settings = settings

    # --- for the transport -----------------------------------------------------------------------

    @abstractmethod
    def _wake(self) -> None:
        """Carry and tell what there is, or see that it is done; called without a lock."""

    @abstractmethod
    def _stop(self) -> None:
        """End the I/O, and tell() for the last time; called once, without a lock."""

    async def _stop_async(self) -> None:
        """Do the same on a worker's loop; in a thread of its own where nothing else is said."""
        await in_own_thread(self._stop)

    @property
    def sending(self) -> Sending:
        """What to say of itself when connecting."""
        end = self._end
        return Sending(
            self._sender_id,
            self._worker_id,
            self._settings.ack_mode,
            end.draining(),
            end.receiver_incarnation,
            end.acknowledged,
        )

    def opened(self, opened: Opened, loads: dict[int, float]) -> None:
        """Go on over a new connection."""
        self._end.opened(opened)
        self._end.take_load(loads)

    def lost(self) -> None:
        """Take account of a connection that has broken, or whose receiver is gone."""
        self._end.lost()

    def next_frame(self) -> OutFrame | None:
        """Return what to write next; None when there is nothing, or no connection."""
        return self._end.next_frame()

    def next_watched(self) -> Collection[int]:
        """Return the tasks whose releases the receiver is asked to tell; none when it knows."""
        return self._end.take_watched()

    def update(self, update: AckUpdate) -> None:
        """Take an acknowledgement in."""
        self._end.update(update)

    @property
    def waiting(self) -> bool:
        """Whether there may be something to write or to tell."""
        return bool(self._end.pending_messages or self._end.attached)

    def tell(self) -> None:
        """Tell a relay what has settled, and what the receiver is done with."""
        self._end.tell()

    def take_load(self, loads: dict[int, float]) -> None:
        """Take account of what the receiver says."""
        self._end.take_load(loads)

    def take_status(self, congested: Sequence[int], relieved: Sequence[int]) -> None:
        """Take account of the receiver's backpressure status."""
        self._end.take_status(congested, relieved)

    def _version(self) -> int:
        """Return the assignment by which messages are routed, for the next frame."""
        return self._end.assignment_version()

    # --- the end -------------------------------------------------------------------------------------

    def take_back(self, timeout: float) -> list[tuple[TaskGroup, Any]]:
        """See IRelayConnection."""
        self._end.stop_accepting()
        self._end.wait_settled(timeout)
        if (left := self._end.take_back()) is None:
            return []
        self._stop()
        return left

    async def take_back_async(self, timeout: float) -> list[tuple[TaskGroup, Any]]:
        """See IRelayConnection."""
        self._end.stop_accepting()
        await self._end.wait_settled_async(timeout)
        if (left := self._end.take_back()) is None:
            return []
        await self._stop_async()
        return left

    def close(self, timeout: float = 10.0) -> None:
        """See IConnection."""
        self._end.stop_accepting()
        self._end.wait_settled(timeout)
        if self._end.give_up(DropReason.CLOSED):
            self._stop()

    async def close_async(self, timeout: float = 10.0) -> None:
        """See IConnection."""
        self._end.stop_accepting()
        await self._end.wait_settled_async(timeout)
        if self._end.give_up(DropReason.CLOSED):
            await self._stop_async()

    def abort(self) -> None:
        """See IConnection."""
        self.close(0.0)
