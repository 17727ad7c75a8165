"""A stream within one event loop: two bounded queues, one for each direction.

Used by clients of a worker in the same process, the worker's local transport and its Send service. Owns the
registry of the servers in this process, and the messages that are written but not read. Call only from the
event loop. Design: docs/design/sessions.md (transports).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from tuplewire.connection.stream import BufferedStream, ClientStream, StreamBroken, StreamOpener
from tuplewire.errors import TuplewireError, UnreachableError
from tuplewire.session.flow import OutFrame

MEMORY_PREFIX = "memory:"
"""The prefix of addresses of servers in this process, before the port."""
_BUFFER_BYTES = 4 << 20
"""A writer waits while this many bytes are not read yet, as with gRPC's flow control."""


class MemoryStream(BufferedStream):
    """One side of a stream."""

    def __init__(self) -> None:
        super().__init__()
        self._peer = self
        self._unread_bytes = 0

    def connect(self, other: MemoryStream) -> None:
        """Connect this side with another one as a stream."""
        self._peer, other._peer = other, self

    async def write(self, data: bytes | OutFrame) -> None:
        other = self._peer
        while self.failure is None and other._unread_bytes >= _BUFFER_BYTES:
            other._space_event.clear()
            await other._space_event.wait()
        if self.failure is not None:
            raise StreamBroken from self.failure
        other._arrived.append(data)
        other._unread_bytes += _size_of(data)
        other._changed.set()

    async def read(self) -> Any:
        """See MessageStream. A Send stream also returns frames as OutFrame."""
        if not await self._await_arrival():
            return None
        await asyncio.sleep(0)  # one message each turn: other streams run in between, as over a socket
        data: bytes | OutFrame = self._arrived.popleft()
        self._unread_bytes -= _size_of(data)
        self._space_event.set()
        return data

    def finish(self) -> None:
        """Mark the end of this direction; the other side reads None."""
        self._peer._peer_finished = True
        self._peer._changed.set()

    def disconnect(self, reason: TuplewireError) -> None:
        """End the stream for both sides; only the first reason counts."""
        super().disconnect(reason)
        super(MemoryStream, self._peer).disconnect(reason)


def _size_of(data: bytes | OutFrame) -> int:
    return data.size_bytes if isinstance(data, OutFrame) else len(data)


class MemoryClientStream(MemoryStream, ClientStream):
    """The connecting side of a stream."""

    async def write_frame(self, frame: OutFrame) -> None:
        """See ClientStream. Passes the frame's groups without a copy."""
        await self.write(frame)

    async def done_writing(self) -> None:
        self.finish()

    async def end(self) -> TuplewireError:
        self.disconnect(UnreachableError("the stream was closed"))
        assert self.failure is not None  # noqa: S101 - disconnect has set it
        return self.failure


memory_stream_openers: dict[tuple[str, int], Callable[[str], MemoryClientStream]] = {}
"""Functions that open a stream to a server here, by topology and port. Source: Storm's `queues-map`.
"""
# Their streams belong to the parent's event loop.
os.register_at_fork(after_in_child=memory_stream_openers.clear)


def memory_stream_opener(topology: str, port: int) -> StreamOpener:
    """Return a function that opens streams to a server of this process."""

    @asynccontextmanager
    async def open_stream(method: str) -> AsyncIterator[ClientStream]:
        server = memory_stream_openers.get((topology, port))
        if server is None:
            raise UnreachableError(f"{MEMORY_PREFIX}{port}: topology {topology!r} has no server there")
        stream = server(method)
        try:
            yield stream
        finally:
            stream.disconnect(UnreachableError("the stream was closed by the other side"))

    return open_stream
