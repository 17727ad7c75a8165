"""GrpcContext: the IContext of the gRPC transport."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuplewire.connection.channel import dial_grpc
from tuplewire.connection.loop import EventLoopThread
from tuplewire.connection.stream import Dial
from tuplewire_service.messaging.base import IConnectionCallback
from tuplewire_service.messaging.grpc.grpc_server import GrpcServerConnection
from tuplewire_service.messaging.grpc.grpc_settings import GrpcSettings, GrpcWiring
from tuplewire_service.messaging.streamed.streamed_context import StreamedContext


class GrpcContext(StreamedContext):
    """Binds the Messaging service and connects to it. Source: Storm's `messaging.netty.Context`.

    Whoever makes one directly may give its settings, in place of prepare(), and its wiring.
    """

    def __init__(self, settings: GrpcSettings | None = None, wiring: GrpcWiring | None = None) -> None:
        super().__init__()
        self._settings = settings or GrpcSettings.from_conf({})
        self._wiring = wiring or GrpcWiring()

    def prepare(self, conf: Mapping[str, Any]) -> None:
        """See IContext; GrpcSettings has the keys."""
        self._settings = GrpcSettings.from_conf(conf)

    @property
    def _common(self) -> GrpcSettings:
        return self._settings

    def _serve(
        self, thread: EventLoopThread, topology_id: str, port: int, callback: IConnectionCallback | None
    ) -> GrpcServerConnection:
        return GrpcServerConnection(thread, topology_id, port, self._settings, self._wiring, callback)

    def _dial(self, thread: EventLoopThread, host: str, port: int) -> Dial:  # noqa: ARG002
        return dial_grpc(f"{host}:{port}", self._settings.session, self._wiring.dialler)
