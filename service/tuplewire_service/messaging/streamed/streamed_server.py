"""The bound side of a transport whose streams carry sessions."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence

from tuplewire.connection.loop import EventLoopThread
from tuplewire_service.messaging.base import ConnectionStatus, IConnectionCallback, Intake, ServerStatistics
from tuplewire_service.messaging.reception import ReceptionServer
from tuplewire_service.messaging.streamed.recv_service import RecvService
from tuplewire_service.messaging.streamed.send_service import SendService
from tuplewire_service.messaging.streamed.streamed_stream import ServerStream, SilentStreams
from tuplewire_service.messaging.subscription import ISubscriptionSource
from tuplewire_service.messaging.transport_settings import TransportSettings

_LAST_CALLS_SECONDS = 0.5
"""What is still in progress at a close, a status call or an idle Recv stream, gets this long."""


class StreamedServer(ReceptionServer):
    """Serves senders (Send) and consumers (Recv) of one topology over the streams of a transport.

    A transport says how it listens (_bind, _unbind) and hands every stream to the handler of its method.
    """

    def __init__(
        self,
        thread: EventLoopThread,
        topology: str,
        port: int,
        settings: TransportSettings,
        callback: IConnectionCallback | None,
    ) -> None:
        super().__init__()
        self._thread = thread
        self._port = port
        self._silent = silent = SilentStreams(settings.limits)
        self._send = SendService(topology, settings, silent, self._reception)
        if callback is not None:
            self.register_recv(callback)
        self._handlers: dict[str, Callable[[ServerStream], Awaitable[None]]] = {"Send": self._send.serve}
        self._recv: RecvService | None = None
        source: object = callback
        if isinstance(source, ISubscriptionSource):
            self._recv = RecvService(topology, settings, silent, source)
            self._handlers["Recv"] = self._recv.serve
        thread.run(self._start())

    async def _start(self) -> None:
        self._port = await self._bind()
        self._thread.pinned += 1
        self._status = ConnectionStatus.READY

    @abstractmethod
    async def _bind(self) -> int:
        """Listen, note the addresses, and return the port; BindError."""

    @abstractmethod
    async def _unbind(self, grace: float | None) -> None:
        """Stop listening and end what is open; calls in progress get so many seconds."""

    def _opened(self) -> None:
        self._thread.call(self._send.opened.set)

    def _tell_load(self, loads: dict[int, float]) -> None:
        self._thread.call(lambda: self._send.send_load(loads))

    def send_backpressure_status(
        self, worker_id: str, congested: Sequence[int], relieved: Sequence[int]
    ) -> None:
        self._check_open()
        self._thread.call(lambda: self._send.send_backpressure(worker_id, congested, relieved))

    def statistics(self) -> ServerStatistics:
        streams = Counter(self._send.refused_streams)
        if self._recv is not None:
            streams.update(self._recv.refused_streams)
        leases = self._send.leases
        return ServerStatistics(
            self._reception.counts(),
            leases.sharing,
            len(leases) - leases.sharing,
            dict(streams),
            dict(self._reception.refused_messages),
            len(self._silent),
        )

    @property
    def exhausted(self) -> Collection[int]:
        return self._send.exhausted.tasks.keys()

    def stop_intake(self, intake: Intake = Intake.NOBODY) -> None:
        """See IServerConnection. Ends Send streams; consumers go on."""
        self._thread.run(self.stop_intake_async(intake))

    async def stop_intake_async(self, intake: Intake = Intake.NOBODY) -> None:
        await self._send.drain(intake)

    def close(self, timeout: float = 10.0) -> None:
        if self._status is not ConnectionStatus.CLOSED:
            self._thread.run(self.close_async(timeout))

    async def close_async(self, timeout: float = 10.0) -> None:
        if self._status is ConnectionStatus.CLOSED:
            return
        self._status = ConnectionStatus.CLOSED
        if self._recv is not None:
            self._recv.draining = True
        async with asyncio.timeout(timeout):
            await self._send.drain(Intake.NOBODY)
            await self._send.end()
        await self._stop(_LAST_CALLS_SECONDS)

    def abort(self) -> None:
        if self._status is not ConnectionStatus.CLOSED:
            self._status = ConnectionStatus.CLOSED
            self._thread.run(self._stop(None))

    async def _stop(self, grace: float | None) -> None:
        self._reception.close()
        await self._unbind(grace)
        self._thread.pinned -= 1
