"""The connecting side of a transport whose streams carry sessions: one session to one worker."""

from __future__ import annotations

from typing import Any

from tuplewire.config import SessionSettings
from tuplewire.connection.loop import EventLoopThread
from tuplewire.connection.sender import Identity, Sender
from tuplewire.connection.stream import Dial
from tuplewire.group import TaskGroup
from tuplewire.session.pressure import OutboundPressure
from tuplewire_service.messaging.relay_client import RelayClient


class StreamedClient(RelayClient, Sender):
    """A Sender in the form of the plug-in contract."""

    def __init__(
        self, thread: EventLoopThread, address: str, identity: Identity, settings: SessionSettings, dial: Dial
    ) -> None:
        """Begin to connect; see Sender."""
        Sender.__init__(self, address, identity, settings, thread.loop, dial)
        self._port = int(address.rpartition(":")[2])
        self._thread = thread
        thread.suspendables.add(self)
        thread.call(self.start)

    def expect(self, worker_id: str) -> None:
        """See IRelayConnection."""
        self.receiver_id = worker_id

    def watch(self, pressure: OutboundPressure) -> None:
        """See IRelayConnection."""
        self.pressure.outbound = pressure

    def take_back(self, timeout: float) -> list[tuple[TaskGroup, Any]]:
        """See IRelayConnection."""
        return [] if self.ended else self._thread.run(self.take_back_async(timeout))

    def close(self, timeout: float = 10.0) -> None:
        """See IConnection."""
        if not self.ended:
            self._thread.run(self.close_async(timeout))

    def abort(self) -> None:
        """See IConnection."""
        if not self.ended:
            self._thread.run(self.abort_async())
