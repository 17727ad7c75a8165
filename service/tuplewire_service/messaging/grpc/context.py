"""GrpcContext: the IContext of the gRPC transport."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Mapping
from typing import Any

from tuplewire.channel import dial_grpc
from tuplewire.loop import messaging_loop
from tuplewire.sender import Identity, Sender
from tuplewire_service.messaging.base import IConnection, IConnectionCallback, IContext
from tuplewire_service.messaging.grpc.server import GrpcServerConnection
from tuplewire_service.messaging.grpc.settings import GrpcSettings
from tuplewire_service.messaging.sessions.client import SessionClient


class GrpcContext(IContext):
    """Binds the Messaging service and connects to it. Source: Storm's `messaging.netty.Context`.

    Not for use on the messaging loop itself: bind, close and term wait for it.
    """

    def __init__(self) -> None:
        self._settings = GrpcSettings.from_conf({})
        self._connections = 0
        self._made: list[IConnection] = []

    def prepare(self, conf: Mapping[str, Any]) -> None:
        """See IContext; GrpcSettings has the keys."""
        self._settings = GrpcSettings.from_conf(conf)

    def bind(
        self, topology_id: str, port: int, callback: IConnectionCallback | None = None
    ) -> GrpcServerConnection:
        """See IContext. Raises BindError when the port is in use."""
        settings = self._settings
        server = GrpcServerConnection(messaging_loop(), topology_id, port, settings, callback)
        self._made.append(server)
        return server

    def connect(self, topology_id: str, host: str, port: int) -> SessionClient:
        """See IContext. Each connection is a session of its own."""
        settings = self._settings
        thread = messaging_loop()
        self._connections += 1
        identity = Identity(
            topology_id,
            f"{settings.worker_id or uuid.uuid4()}/{self._connections}",
            settings.incarnation,
            worker=bool(settings.worker_id),
        )
        address = f"{host}:{port}"
        dial = dial_grpc(address, settings.session)
        make_sender = functools.partial(Sender, address, identity, settings.session, thread.loop, dial)
        connection = SessionClient(thread, make_sender)
        self._made.append(connection)
        return connection

    def term(self) -> None:
        """See IContext."""
        made, self._made = self._made, []
        for connection in reversed(made):
            connection.close()
