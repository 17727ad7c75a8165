"""What the factory finds: an IContext, and a factory of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toy_transport.client import ToyClient
from toy_transport.server import ToyServer
from tuplewire.config import MIB, SessionSettings
from tuplewire.session.credit import Window
from tuplewire_service.messaging.base import IConnection, IConnectionCallback, IContext


class ToyContext(IContext):
    """Keys: `toy.session` (SessionSettings), `toy.receive_messages`, `toy.worker_id`."""

    def __init__(self) -> None:
        self._made: list[IConnection] = []

    def prepare(self, conf: Mapping[str, Any]) -> None:
        self._session: SessionSettings = conf.get("toy.session", SessionSettings())
        self._window = Window(conf.get("toy.receive_messages", 10_000), 16 * MIB)
        self._worker_id: str = conf.get("toy.worker_id", "")

    def bind(self, topology_id: str, port: int, callback: IConnectionCallback | None = None) -> ToyServer:
        server = ToyServer(topology_id, port, callback, self._window, self._session)
        self._made.append(server)
        return server

    def connect(self, topology_id: str, host: str, port: int) -> ToyClient:
        client = ToyClient(topology_id, (host, port), self._worker_id, self._session)
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
