"""What the contexts of transports whose streams carry sessions have in common."""

from __future__ import annotations

import uuid
from abc import abstractmethod

from tuplewire.addresses import bracketed
from tuplewire.connection.loop import EventLoopThread, messaging_loop
from tuplewire.connection.sender import Identity
from tuplewire.connection.stream import Dial
from tuplewire_service.messaging.base import IConnection, IConnectionCallback, IContext
from tuplewire_service.messaging.streamed.streamed_client import StreamedClient
from tuplewire_service.messaging.streamed.streamed_server import StreamedServer
from tuplewire_service.messaging.transport_settings import TransportSettings


class StreamedContext(IContext):
    """Binds and connects; a transport says how (_serve, _dial).

    Not for use on the messaging loop itself: bind, close and term wait for it.
    """

    def __init__(self) -> None:
        self._connections = 0
        self._start = uuid.uuid4().hex[:16]
        self._made: list[IConnection] = []

    @property
    @abstractmethod
    def _common(self) -> TransportSettings:
        """The settings."""

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
        server = self._serve(messaging_loop(), topology_id, port, callback)
        self._made.append(server)
        return server

    def connect(self, topology_id: str, host: str, port: int) -> StreamedClient:
        """See IContext. Each connection is a session of its own."""
        settings = self._common
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
        connection = StreamedClient(thread, f"{host}:{port}", identity, settings.session, dial)
        self._made.append(connection)
        return connection

    def term(self) -> None:
        """See IContext."""
        made, self._made = self._made, []
        for connection in reversed(made):
            connection.close()
