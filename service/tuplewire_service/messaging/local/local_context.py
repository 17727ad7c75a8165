"""LocalContext: the IContext of the local transport."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuplewire_service.messaging.base import IConnection, IConnectionCallback, IContext
from tuplewire_service.messaging.local.local_client import LocalClient
from tuplewire_service.messaging.local.local_endpoint import registry
from tuplewire_service.messaging.local.local_server import LocalServer
from tuplewire_service.messaging.transport_settings import TransportSettings


class LocalContext(IContext):
    """Binds and connects within the process; all its instances share one registry."""

    def __init__(self) -> None:
        self._settings = TransportSettings()
        self._made: list[IConnection] = []

    def prepare(self, conf: Mapping[str, Any]) -> None:
        """See IContext; TransportSettings has the keys."""
        self._settings = TransportSettings.from_conf(conf)

    def bind(self, topology_id: str, port: int, callback: IConnectionCallback | None = None) -> LocalServer:
        """See IContext. Raises BindError when the port of this topology is bound."""
        server = LocalServer(topology_id, port, self._settings, callback)
        self._made.append(server)
        return server

    def connect(self, topology_id: str, host: str, port: int) -> LocalClient:
        """See IContext. The host does not matter: everything is here."""
        del host
        client = LocalClient(registry.endpoint(topology_id, port), port, self._settings)
        self._made.append(client)
        return client

    def term(self) -> None:
        """See IContext."""
        made, self._made = self._made, []
        for connection in reversed(made):
            connection.close()
