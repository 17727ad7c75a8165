"""Both sides of a stream over a ZeroMQ connection. The connecting side is a DEALER with one stream.

Used by zmq_transport.py. Owns the format of frames, each stream's counts, and the DEALER socket of each
connecting stream. Call only from the event loop. Design: docs/design/sessions.md (ZeroMQ between workers).

Each ZeroMQ message has two parts, a header and a body. The header is the kind (1 byte), then the total
numbers of messages and bytes that the other side may send since the start of the stream (8 bytes each,
big-endian). Every frame repeats these totals, so no single frame is essential.

| kind | from | body |
|---|---|---|
| OPEN | the connecting side, first | the method's name |
| DATA | both | one message of the stream |
| GRANT | both | empty |
| DONE | both, once | empty: this side sends nothing more |
| REFUSED | the server, last | the code's name, a zero byte, the reason |

A stream is one connection; the ROUTER distinguishes connections by the routing ids that it assigned. It
serves all peers from one socket. If a peer does not read, the ROUTER either drops its messages or blocks for
all peers. To prevent both, a side writes only within the other side's allowance.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple, NoReturn

import zmq
from zmq.utils.monitor import parse_monitor_message

from tuplewire.connection.stream import BufferedStream, ClientStream, StreamBroken, StreamOpener
from tuplewire.errors import (
    MalformedError,
    ProtocolError,
    RefusedError,
    TuplewireError,
    UnreachableError,
    refusal_error,
)
from tuplewire_service.messaging.server_stream import MAX_DETAIL_LENGTH, ServerStream, code_of
from tuplewire_service.messaging.zmq.zmq_sockets import Pump, Sockets

_HEADER = struct.Struct("!BQQ")
_GRANT_DIVISOR = 4
"""An allowance update is sent once it is at least this fraction (1/4) of the window."""
_CONNECT_SECONDS = 5.0

HANDSHAKE_FAILURES = {
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "the listener ended the handshake",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "the listener is not a Tuplewire worker",
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "the listener requires credentials",
}
_LOSS_REASONS = {
    **HANDSHAKE_FAILURES,
    zmq.EVENT_CLOSED: "no process listens there",
    zmq.EVENT_DISCONNECTED: "the connection was lost",
}


class FrameKind(enum.IntEnum):
    """The kind of a frame."""

    OPEN = 1
    DATA = 2
    GRANT = 3
    DONE = 4
    REFUSED = 5


class Allowance(NamedTuple):
    """A total of messages and bytes since the start of a stream. It only grows."""

    messages: int
    size_bytes: int

    def plus(self, messages: int, size_bytes: int) -> Allowance:
        """Return the sum."""
        return Allowance(self.messages + messages, self.size_bytes + size_bytes)

    def is_below(self, limit: Allowance) -> bool:
        """Return True if another message may be sent; the last one may exceed the bytes."""
        return self.messages < limit.messages and self.size_bytes < limit.size_bytes


ZERO = Allowance(0, 0)


class Frame(NamedTuple):
    """One ZeroMQ message of a stream."""

    kind: FrameKind
    allowance: Allowance
    body: bytes


def encode(kind: FrameKind, allowance: Allowance, body: bytes = b"") -> list[bytes]:
    """Return the parts of a frame."""
    return [_HEADER.pack(kind, *allowance), body]


def decode(parts: Sequence[bytes]) -> Frame:
    """Read the parts of a frame. Raises MalformedError if they are not a valid frame."""
    # A hostile peer may send any number of parts; the error names the first four.
    if len(parts) != 2 or len(parts[0]) != _HEADER.size:
        sizes = [len(part) for part in parts[:4]]
        raise MalformedError(f"{len(parts)} parts (of {sizes} ... bytes) are not a frame of this transport")
    kind, messages, size_bytes = _HEADER.unpack(parts[0])
    try:
        return Frame(FrameKind(kind), Allowance(messages, size_bytes), parts[1])
    except ValueError:
        raise MalformedError(f"a frame of kind {kind} is unknown to this release") from None


def encode_refusal(code: str, detail: str) -> bytes:
    """Return the body of a REFUSED frame."""
    return f"{code}\0{detail}".encode(errors="backslashreplace")


def decode_refusal(body: bytes) -> RefusedError:
    """Return the error of a REFUSED frame."""
    code, _, detail = body.decode(errors="replace").partition("\0")
    return refusal_error(code, detail)


class ZmqStream(BufferedStream):
    """One side of a stream. `window` is the amount of unread messages that the other side may send."""

    def __init__(self, send: Callable[[Sequence[bytes]], None], window: tuple[int, int]) -> None:
        super().__init__()
        self._send = send
        self._window = window
        self._sent = self._allowed = self._received = self._read = self._granted = ZERO

    async def write(self, data: bytes) -> None:
        """See MessageStream: waits while the other side has no space, which limits a burst."""
        # Within the allowance, a write never reaches a high-water mark, where a ROUTER drops messages.
        while self.failure is None and not self._sent.is_below(self._allowed):
            self._space_event.clear()
            await self._space_event.wait()
        self._send_frame(FrameKind.DATA, data)
        self._sent = self._sent.plus(1, len(data))

    async def read(self) -> bytes | None:
        if not await self._await_arrival():
            return None
        data: bytes = self._arrived.popleft()
        self._read = self._read.plus(1, len(data))
        counts = zip(self._read, self._window, self._granted, strict=True)
        if any(read + window - granted >= window / _GRANT_DIVISOR for read, window, granted in counts):
            self.send_grant()
        return data

    def on_frame(self, frame: Frame) -> None:
        """Apply a frame of the other side. Raises MalformedError if it is not expected."""
        # An allowance never falls, even if the peer sends a lower one.
        self._allowed = Allowance(*map(max, self._allowed, frame.allowance))
        self._space_event.set()
        if frame.kind is FrameKind.DATA:
            if self._peer_finished:
                raise MalformedError("a message came after the end of its stream")
            # The peer knows only the allowance that was sent last, which may be below the current one.
            if not self._received.is_below(self._granted):
                raise MalformedError(f"more was sent than allowed: {self._granted}")
            self._received = self._received.plus(1, len(frame.body))
            self._arrived.append(frame.body)
            self._changed.set()
        elif frame.kind is FrameKind.DONE:
            self._peer_finished = True
            self._changed.set()
        elif frame.kind is not FrameKind.GRANT:
            raise MalformedError(f"unexpected frame of kind {frame.kind.name} in an open stream")

    def send_grant(self) -> None:
        """Send the current allowance to the other side, unless it is disconnected."""
        with contextlib.suppress(StreamBroken):  # a reader gets the error, after the messages that arrived
            self._send_frame(FrameKind.GRANT)

    def _send_frame(self, kind: FrameKind, body: bytes = b"") -> None:
        if self.failure is not None:
            raise StreamBroken from self.failure
        self._granted = self._read.plus(*self._window)
        try:
            self._send(encode(kind, self._granted, body))
        except zmq.ZMQError as error:
            self.disconnect(UnreachableError(f"the connection was lost: {error}"))
            raise StreamBroken from error


class ZmqServerStream(ZmqStream, ServerStream):
    """The serving side of a stream."""

    def __init__(self, send: Callable[[Sequence[bytes]], None], window: tuple[int, int], peer: str) -> None:
        super().__init__(send, window)
        self.peer = peer

    def on_open(self, allowance: Allowance) -> None:
        """Apply the other side's allowance, and answer."""
        self._allowed = allowance
        self.send_grant()

    async def refuse(self, error: TuplewireError) -> NoReturn:
        self.send_refusal(error)
        raise StreamBroken from error

    def send_refusal(self, error: TuplewireError) -> None:
        """Send the reason for the end to the other side, unless the stream has already ended."""
        # If the stream was ended before, the peer has the first reason, or is disconnected.
        with contextlib.suppress(StreamBroken):
            body = encode_refusal(code_of(error), str(error)[:MAX_DETAIL_LENGTH])
            self._send_frame(FrameKind.REFUSED, body)
        self.disconnect(UnreachableError("the stream was ended on this side"))

    def finish(self) -> None:
        """Notify the other side of a clean end, unless the stream has already ended."""
        with contextlib.suppress(StreamBroken):
            self._send_frame(FrameKind.DONE)


def zmq_stream_opener(sockets: Sockets, endpoint: str, address: str, window: tuple[int, int]) -> StreamOpener:
    """Return a function that opens streams to an endpoint. `address` is its name in errors."""

    @asynccontextmanager
    async def open_stream(method: str) -> AsyncIterator[ClientStream]:
        stream = _ZmqClientStream(sockets, address, window)
        try:
            await stream.open(endpoint, method)
            yield stream
        finally:
            stream.close()

    return open_stream


class _ZmqClientStream(ZmqStream, ClientStream):
    def __init__(self, sockets: Sockets, address: str, window: tuple[int, int]) -> None:
        self._sockets = sockets
        self._address = address
        self._socket = sockets.make(zmq.DEALER)
        self._monitor = sockets.open_monitor(self._socket)
        self._pump = Pump(self._socket, self._on_message)
        self._monitor_pump = Pump(self._monitor, self._on_monitor_event)
        self._connected = asyncio.Event()
        self._answered = asyncio.Event()
        super().__init__(self._pump.send, window)

    async def open(self, endpoint: str, method: str) -> None:
        """Connect and request the method. Raises the error of a refusal, or UnreachableError."""
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                self._socket.set(zmq.IPV6, int("[" in endpoint))
                self._socket.connect(endpoint)
                await self._connected.wait()
                # The reason is raised below.
                with contextlib.suppress(StreamBroken):
                    self._send_frame(FrameKind.OPEN, method.encode())
                await self._answered.wait()
        except TimeoutError:
            raise UnreachableError(f"{self._address}: no answer within {_CONNECT_SECONDS:.0f} s") from None
        except zmq.ZMQError as error:
            raise UnreachableError(f"{self._address}: {error}") from error
        if self.failure is not None:
            raise self.failure

    def _on_message(self, parts: list[zmq.Frame]) -> None:
        # The ways in which a stream ends for the connecting side:
        # 1. The server refuses it (REFUSED), or sends anything that is not a valid frame.
        # 2. The server finishes (DONE): read() returns None.
        # 3. The monitor reports that the connection is lost; see _on_monitor_event().
        # 4. This side closes it; see end() and close().
        try:
            frame = decode([part.bytes for part in parts])
            if frame.kind is FrameKind.REFUSED:
                self.disconnect(decode_refusal(frame.body))
            else:
                self.on_frame(frame)
        except MalformedError as error:
            self.disconnect(ProtocolError(f"{self._address} does not answer as a Tuplewire worker: {error}"))
        self._answered.set()

    def _on_monitor_event(self, parts: list[zmq.Frame]) -> None:
        event = zmq.Event(parse_monitor_message([part.bytes for part in parts])["event"])
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._connected.set()
        elif event in _LOSS_REASONS:
            self._pump.receive_waiting()  # the last messages, above all the reason for the end
            self.disconnect(UnreachableError(f"{self._address}: {_LOSS_REASONS[event]}"))

    def disconnect(self, reason: TuplewireError) -> None:
        super().disconnect(reason)
        self._connected.set()
        self._answered.set()

    async def done_writing(self) -> None:
        self._send_frame(FrameKind.DONE)

    async def end(self) -> TuplewireError:
        error = UnreachableError(f"{self._address}: the stream ended")
        self.disconnect(error)
        return self.failure or error

    def close(self) -> None:
        """Close the connection, which ends the stream for the other side."""
        self.disconnect(UnreachableError(f"{self._address}: the stream was closed on this side"))
        self._monitor_pump.close()
        self._pump.close()
        self._socket.disable_monitor()
        self._sockets.close(self._monitor)
        self._sockets.close(self._socket)
