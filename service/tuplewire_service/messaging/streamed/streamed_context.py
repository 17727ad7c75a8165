"""The connecting side of transports whose streams carry sessions, and what their contexts share."""

from __future__ import annotations

import uuid
from abc import abstractmethod
from typing import Any

from tuplewire.addresses import bracketed
from tuplewire.config import SessionSettings
from tuplewire.connection.loop import EventLoopThread, messaging_loop
from tuplewire.connection.sender import Identity, Sender
from tuplewire.connection.stream import Dial
from tuplewire.group import TaskGroup
from tuplewire.session.pressure import OutboundPressure
from tuplewire_service.messaging.base import IConnectionCallback
from tuplewire_service.messaging.relay_client import RelayClient
from tuplewire_service.messaging.streamed.streamed_server import StreamedServer
from tuplewire_service.messaging.transport_settings import TransportContext


class StreamedClient(RelayClient, Sender):
    """A Sender in the form of the plug-in contract."""

    def __init__(
        self, thread: EventLoopThread, address: str, identity: Identity, settings: SessionSettings, dial: Dial
    ) -> None:
        """Begin to connect; see Sender."""
        Sender.__init__(self, address, identity, settings, thread.loop, dial)
        self._port = int(address.rpartition(":")[2])
        self._thread = thread
        thread.begin(self)

    def expect(self, worker_id: str) -> None:
        self.receiver_id = worker_id

    def watch(self, pressure: OutboundPressure) -> None:
        self.pressure.outbound = pressure

    def take_back(self, timeout: float) -> list[tuple[TaskGroup, Any]]:
        return [] if self.ended else self._thread.run(self.take_back_async(timeout))

    def close(self, timeout: float = 10.0) -> None:
        if not self.ended:
            self._thread.run(self.close_async(timeout))

    def abort(self) -> None:
        if not self.ended:
            self._thread.run(self.abort_async())


class StreamedContext(TransportContext):
    """Binds and connects; a transport says how (_serve, _dial).

    Not for use on the messaging loop itself: bind, close and term wait for it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._connections = 0
        self._start = uuid.uuid4().hex[:16]

    @abstractmethod
    def _serve(
        self, thread: EventLoopThread, topology_id: str, port: int, callback: IConnectionCallback | None
    ) -> StreamedServer:
        """Return a server that is bound; BindError."""

    @abstractmethod
    def _dial(self, thread: EventLoopThread, host: str, port: int) -> Dial:
        """Return what opens streams to a worker; an IPv6 host has brackets."""

    def bind(
        self, topology_id: str, port: int, callback: IConnectionCallback | None = None
    ) -> StreamedServer:
        """See IContext. Raises BindError when the port is in use."""
        return self._keep(self._serve(messaging_loop(), topology_id, port, callback))

    def connect(self, topology_id: str, host: str, port: int) -> StreamedClient:
        """See IContext. Each connection is a session of its own."""
        settings = self._settings
        host = bracketed(host)
        thread = messaging_loop()
        self._connections += 1
        identity = Identity(
            topology_id,
            # A worker that starts again may have an earlier clock; its own incarnation must not keep it out.
            f"{settings.worker_id or uuid.uuid4()}/{self._start}.{self._connections}",
            settings.incarnation,
            worker=bool(settings.worker_id),
        )
        dial = self._dial(thread, host, port)
        return self._keep(StreamedClient(thread, f"{host}:{port}", identity, settings.session, dial))
