"""What the factory finds: an IContext, and a factory of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toy_transport.client import ToyClient
from toy_transport.server import ToyServer
from tuplewire_service.messaging.base import IConnection, IConnectionCallback, IContext
from tuplewire_service.messaging.transport_settings import TransportSettings


class ToyContext(IContext):
    """Has the settings of every transport."""

    def __init__(self) -> None:
        self._made: list[IConnection] = []

    def prepare(self, conf: Mapping[str, Any]) -> None:
        self._settings = TransportSettings.from_conf(conf)

    def bind(self, topology_id: str, port: int, callback: IConnectionCallback | None = None) -> ToyServer:
        server = ToyServer(topology_id, port, callback, self._settings)
        self._made.append(server)
        return server

    def connect(self, topology_id: str, host: str, port: int) -> ToyClient:
        settings = self._settings
        client = ToyClient(topology_id, (host, port), settings.worker_id, settings.session)
        self._made.append(client)
        return client

    def term(self) -> None:
        while self._made:
            self._made.pop().close()


class ToyFactory:
    """Not an IContext: it makes one, prepared."""

    @staticmethod
    def make_context(conf: Mapping[str, Any]) -> ToyContext:
        context = ToyContext()
        context.prepare(conf)
        return context
