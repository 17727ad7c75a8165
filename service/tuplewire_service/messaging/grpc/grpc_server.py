"""The bound side of the gRPC transport: the Messaging service on a server of its own."""

from __future__ import annotations

import grpc
import grpc.aio

from tuplewire.connection.channel import SERVICE, server_options
from tuplewire.connection.loop import EventLoopThread
from tuplewire.errors import BindError
from tuplewire_service.messaging.base import IConnectionCallback
from tuplewire_service.messaging.grpc.grpc_settings import GrpcSettings, GrpcWiring
from tuplewire_service.messaging.grpc.grpc_stream import handler_of
from tuplewire_service.messaging.streamed.streamed_server import StreamedServer


class GrpcServerConnection(StreamedServer):
    """Listens for senders (Send) and consumers (Recv) of one topology."""

    def __init__(
        self,
        thread: EventLoopThread,
        topology: str,
        port: int,
        settings: GrpcSettings,
        wiring: GrpcWiring,
        callback: IConnectionCallback | None,
    ) -> None:
        self._settings = settings
        self._wiring = wiring
        super().__init__(thread, topology, port, settings, callback)

    async def _bind(self) -> int:
        settings = self._settings
        self._server = grpc.aio.server(options=server_options(settings.session))
        methods = {name: handler_of(serve, self._wiring.admit) for name, serve in self._handlers.items()}
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, methods), *self._wiring.services)
        )
        port = self._listen(f"{settings.host}:{self._port}")
        for address in settings.listen:
            self._listen(address)
        await self._server.start()
        return port

    def _listen(self, address: str) -> int:
        try:
            tls = None if address.startswith("unix:") else self._wiring.tls
            port = (
                self._server.add_insecure_port(address)
                if tls is None
                else self._server.add_secure_port(address, tls)
            )
        except RuntimeError as error:
            raise BindError(
                f"cannot listen on {address}: it is in use, or not an address of this machine"
            ) from error
        if address.startswith("unix:"):
            self._addresses.append(address)
        else:
            self._addresses.append(f"{address.rpartition(':')[0]}:{port}")
        return port

    async def _unbind(self, grace: float | None) -> None:
        await self._server.stop(grace)
