"""GrpcContext: the IContext of the gRPC transport."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuplewire.channel import dial_grpc
from tuplewire.credentials import Credentials
from tuplewire.dialling import Dialler
from tuplewire.loop import EventLoopThread
from tuplewire.stream import Dial
from tuplewire_service.messaging.base import IConnectionCallback
from tuplewire_service.messaging.grpc.server import GrpcServerConnection
from tuplewire_service.messaging.grpc.settings import GrpcSettings
from tuplewire_service.messaging.streamed.context import StreamedContext


class GrpcContext(StreamedContext):
    """Binds the Messaging service and connects to it. Source: Storm's `messaging.netty.Context`."""

    def __init__(self) -> None:
        super().__init__()
        self._settings = GrpcSettings.from_conf({})

    def prepare(self, conf: Mapping[str, Any]) -> None:
        """See IContext; GrpcSettings has the keys."""
        self._settings = GrpcSettings.from_conf(conf)

    @property
    def _common(self) -> GrpcSettings:
        return self._settings

    def _serve(
        self, thread: EventLoopThread, topology_id: str, port: int, callback: IConnectionCallback | None
    ) -> GrpcServerConnection:
        return GrpcServerConnection(thread, topology_id, port, self._settings, callback)

    def _dial(self, thread: EventLoopThread, host: str, port: int) -> Dial:  # noqa: ARG002
        dialler = self._settings.dialler or Dialler(Credentials())
        return dial_grpc(f"{host}:{port}", self._settings.session, dialler)
