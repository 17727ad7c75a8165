"""The bound side of the gRPC transport: the Messaging service on a server of its own."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import grpc
import grpc.aio

from tuplewire.channel import server_options
from tuplewire.errors import BindError, ClosedError
from tuplewire.loop import EventLoopThread
from tuplewire.message import TaskMessage
from tuplewire_service.messaging.base import (
    BLOCK,
    ConnectionStatus,
    IConnectionCallback,
    Intake,
    IServerConnection,
    ServerStatistics,
)
from tuplewire_service.messaging.grpc.recv_service import RecvService
from tuplewire_service.messaging.grpc.send_service import SendService
from tuplewire_service.messaging.grpc.settings import GrpcSettings
from tuplewire_service.messaging.inbox import Inbox
from tuplewire_service.messaging.subscription import ISubscriptionSource

logger = logging.getLogger(__name__)

SERVICE = "tuplewire.v1.Messaging"
_LAST_CALLS_SECONDS = 0.5
"""What is still in progress at a close, a status call or an idle Recv stream, gets this long."""


class GrpcServerConnection(IServerConnection):
    """Listens for senders (Send) and consumers (Recv) of one topology."""

    def __init__(
        self,
        thread: EventLoopThread,
        topology: str,
        port: int,
        settings: GrpcSettings,
        callback: IConnectionCallback | None,
    ) -> None:
        self._thread = thread
        self._settings = settings
        self._status = ConnectionStatus.CONNECTING
        self._inbox = Inbox()
        if callback is not None:
            self._inbox.register(callback)
        self._topology = topology
        self._port = port
        self._recv: RecvService | None = None
        self._addresses: list[str] = []
        thread.run(self._start(callback))

    async def _start(self, callback: IConnectionCallback | None) -> None:
        settings = self._settings
        self._send = SendService(self._topology, settings, self._inbox)
        methods: dict[str, Any] = {"Send": grpc.stream_stream_rpc_method_handler(self._send.serve)}
        source: object = callback
        if isinstance(source, ISubscriptionSource):
            self._recv = RecvService(self._topology, settings, source)
            methods["Recv"] = grpc.stream_stream_rpc_method_handler(self._recv.serve)
        self._server = grpc.aio.server(options=server_options(settings.session))
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, methods), *settings.services)
        )
        self._port = self._listen(f"{settings.host}:{self._port}")
        for address in settings.listen:
            self._listen(address)
        await self._server.start()
        self._thread.pinned += 1
        self._status = ConnectionStatus.READY

    def _listen(self, address: str) -> int:
        try:
            port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise BindError(
                f"cannot listen on {address}: it is in use, or not an address of this machine"
            ) from error
        if address.startswith("unix:"):
            self._addresses.append(address)
        else:
            self._addresses.append(f"{address.rpartition(':')[0]}:{port}")
        return port

    @property
    def port(self) -> int:
        """See IConnection."""
        return self._port

    @property
    def status(self) -> ConnectionStatus:
        """See IConnection."""
        return self._status

    def register_recv(self, callback: IConnectionCallback) -> None:
        """See IServerConnection. Recv is served only for a callback that was given to bind."""
        self._inbox.register(callback)

    def recv(self, flags: int = BLOCK) -> TaskMessage | None:
        """See IServerConnection."""
        return self._inbox.pull(flags)

    def send_load_metrics(self, loads: Mapping[int, float]) -> None:
        """See IServerConnection."""
        self._check_open()
        self._thread.call(lambda: self._send.send_load(loads))

    def send_backpressure_status(
        self, worker_id: str, congested: Sequence[int], relieved: Sequence[int]
    ) -> None:
        """See IServerConnection."""
        self._check_open()
        self._thread.call(lambda: self._send.send_backpressure(worker_id, congested, relieved))

    def _check_open(self) -> None:
        if self._status is ConnectionStatus.CLOSED:
            raise ClosedError(f"the server on port {self._port} is closed")

    def statistics(self) -> ServerStatistics:
        """See IServerConnection."""
        refused: Counter[str] = Counter(self._send.refused)
        if self._recv is not None:
            refused.update(self._recv.refused)
        return ServerStatistics(self._send.received(), self._send.sessions, dict(refused))

    @property
    def addresses(self) -> Sequence[str]:
        """See IServerConnection: host:port, or unix:///path."""
        return self._addresses

    def stop_intake(self, intake: Intake = Intake.NOBODY) -> None:
        """See IServerConnection. Ends Send streams; consumers go on."""
        self._thread.run(self._send.drain(intake))

    def close(self, timeout: float = 10.0) -> None:
        """See IConnection."""
        if self._status is not ConnectionStatus.CLOSED:
            self._status = ConnectionStatus.CLOSED
            self._thread.run(self._close(timeout))

    async def _close(self, timeout: float) -> None:
        if self._recv is not None:
            self._recv.draining = True
        async with asyncio.timeout(timeout):
            await self._send.drain(Intake.NOBODY)
            await self._send.end()
        await self._stop(_LAST_CALLS_SECONDS)

    def abort(self) -> None:
        """See IConnection."""
        if self._status is not ConnectionStatus.CLOSED:
            self._status = ConnectionStatus.CLOSED
            self._thread.run(self._stop(None))

    async def _stop(self, grace: float | None) -> None:
        self._inbox.close()
        await self._server.stop(grace)
        self._thread.pinned -= 1
