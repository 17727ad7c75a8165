"""The connecting side: a stream is a DEALER with one connection, and ends with it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import zmq
from zmq.utils.monitor import parse_monitor_message

from tuplewire.connection.loop import EventLoopThread
from tuplewire.connection.stream import ClientStream, Dial, StreamBroken
from tuplewire.errors import MalformedError, ProtocolError, TuplewireError, UnreachableError
from tuplewire_service.messaging.zmq.frames import FrameKind, ZmqWindow, decode, decode_refusal
from tuplewire_service.messaging.zmq.zmq_sockets import Pump, Sockets
from tuplewire_service.messaging.zmq.zmq_stream import ZmqStream

_CONNECT_SECONDS = 5.0

_LOST = {
    zmq.EVENT_CLOSED: "nobody listens there",
    zmq.EVENT_DISCONNECTED: "the connection was lost",
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "what listens there broke off the handshake",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "what listens there is no Tuplewire worker",
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "what listens there asks for credentials",
}


def dial_zmq(
    sockets: Sockets, thread: EventLoopThread, endpoint: str, address: str, window: ZmqWindow
) -> Dial:
    """Return what opens streams to an endpoint; the address is how errors name it."""

    @asynccontextmanager
    async def open_stream(method: str) -> AsyncIterator[ClientStream]:
        stream = _ZmqClientStream(sockets, thread, address, window)
        try:
            await stream.open(endpoint, method)
            yield stream
        finally:
            stream.close()

    return open_stream


class _ZmqClientStream(ZmqStream, ClientStream):
    """The connecting side of a stream, and its socket."""

    def __init__(self, sockets: Sockets, thread: EventLoopThread, address: str, window: ZmqWindow) -> None:
        self._sockets = sockets
        self._address = address
        self._socket = sockets.make(thread, zmq.DEALER)
        self._monitor = sockets.watch(self._socket)
        self._pump = Pump(self._socket, self._take_parts)
        self._watch = Pump(self._monitor, self._take_event)
        self._connected = asyncio.Event()
        self._answered = asyncio.Event()
        super().__init__(self._pump.send, window)

    async def open(self, endpoint: str, method: str) -> None:
        """Connect and ask for the method; raises the refusal's own error, or UnreachableError."""
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                self._socket.set(zmq.IPV6, int("[" in endpoint))
                self._socket.connect(endpoint)
                await self._connected.wait()
                with contextlib.suppress(StreamBroken):
                    self._put(FrameKind.OPEN, method.encode())
                await self._answered.wait()
        except TimeoutError:
            raise UnreachableError(
                f"{self._address}: nobody answered within {_CONNECT_SECONDS:.0f} s"
            ) from None
        except zmq.ZMQError as error:
            raise UnreachableError(f"{self._address}: {error}") from error
        if self._why is not None:
            raise self._why

    def _take_parts(self, parts: list[zmq.Frame]) -> None:
        try:
            frame = decode([part.bytes for part in parts])
            if frame.kind is FrameKind.REFUSED:
                self.break_off(decode_refusal(frame.body))
            else:
                self.take(frame)
        except MalformedError as error:
            self.break_off(ProtocolError(f"{self._address} does not answer as a Tuplewire worker: {error}"))
        self._answered.set()

    def _take_event(self, parts: list[zmq.Frame]) -> None:
        event = zmq.Event(parse_monitor_message([part.bytes for part in parts])["event"])
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._connected.set()
        elif event in _LOST:
            self._pump.drain()  # what arrived before the end, above all why it ends
            self.break_off(UnreachableError(f"{self._address}: {_LOST[event]}"))

    def break_off(self, why: TuplewireError) -> None:
        super().break_off(why)
        self._connected.set()
        self._answered.set()

    async def done_writing(self) -> None:
        self._put(FrameKind.DONE)

    async def end(self) -> TuplewireError:
        ended = UnreachableError(f"{self._address}: the stream ended")
        self.break_off(ended)
        return self._why or ended

    def close(self) -> None:
        """Close the connection; the other side takes that for the end of the stream."""
        self.break_off(UnreachableError(f"{self._address}: the stream was closed on this side"))
        self._watch.close()
        self._pump.close()
        self._socket.disable_monitor()
        self._sockets.close(self._monitor)
        self._sockets.close(self._socket)
