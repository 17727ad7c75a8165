"""The local transport: workers of one process, with sessions over streams in memory.

All contexts of a process share a registry that connects the two sides. Messages for an unbound server, or one
without a callback, wait at their sender. Used through the entry point `local`. Owns the registry.
Call only from the event loop. Exceptions: the methods of connections and contexts are thread-safe. Source:
Storm's `messaging.local.Context` (LocalServer, LocalClient). Design: docs/design/sessions.md (transports).
"""

from __future__ import annotations

import asyncio
import contextlib
from itertools import count
from typing import ClassVar, NoReturn

from tuplewire.connection.loop import report_errors
from tuplewire.connection.memory_stream import (
    MEMORY_PREFIX,
    MemoryClientStream,
    MemoryStream,
    memory_stream_opener,
    memory_stream_openers,
)
from tuplewire.connection.stream import StreamBroken, StreamOpener
from tuplewire.errors import BindError, TuplewireError, UnreachableError
from tuplewire_service.messaging.server_stream import FULL_ACCESS, AccessRights, ServerStream
from tuplewire_service.messaging.streamed_transport import StreamedContext, StreamedServer

_FIRST_EPHEMERAL_PORT = 49152


class _LocalServerStream(MemoryStream, ServerStream):
    def __init__(self, peer: str, access: AccessRights) -> None:
        super().__init__()
        self.peer = peer
        self._access = access

    def admit(self) -> AccessRights:
        return self._access

    async def refuse(self, error: TuplewireError) -> NoReturn:
        # In memory, the client receives the exception itself, without a code.
        self.disconnect(error)
        raise StreamBroken from error


class LocalServer(StreamedServer["LocalContext"]):
    """Accepts streams of the same process."""

    blocks_fork = False  # a fork does not affect its streams, and the child starts without servers

    async def _bind(self) -> int:
        """Take a port, or any free one for 0. Raises BindError if the topology already has a server there."""
        self._streams: dict[asyncio.Task[None], _LocalServerStream] = {}
        if (self._topology, self.port) in memory_stream_openers:
            raise BindError(
                f"port {self.port} of topology {self._topology!r} is bound in this process already; "
                "close that server first, or bind port 0 for a free one"
            )
        free = (e for e in count(_FIRST_EPHEMERAL_PORT) if (self._topology, e) not in memory_stream_openers)
        port = self.port or next(free)
        memory_stream_openers[self._topology, port] = self._open
        self.addresses = [f"{MEMORY_PREFIX}{port}"]
        return port

    def _open(self, method: str) -> MemoryClientStream:
        near, far = MemoryClientStream(), _LocalServerStream(self.addresses[0], self._context.access)
        near.connect(far)
        task = report_errors(asyncio.create_task(self._serve_stream(method, far), name=f"local {method}"))
        self._streams[task] = far
        task.add_done_callback(self._streams.pop)
        return near

    async def _serve_stream(self, method: str, stream: _LocalServerStream) -> None:
        # The ways in which a stream ends:
        # 1. The handler returns: the client reads the end.
        # 2. The handler refuses the stream: refuse() has broken it off with the error.
        # 3. The client disconnects: StreamBroken.
        # 4. The server is unbound: the stream is broken off, and this task is cancelled.
        with contextlib.suppress(StreamBroken):  # refused, or disconnected: nothing more can be sent
            await self._handlers[method](stream)
            stream.finish()

    async def _unbind(self, grace: float | None) -> None:
        memory_stream_openers.pop((self._topology, self.port), None)
        if self._streams and grace:
            await asyncio.wait(self._streams, timeout=grace)
        for task, stream in list(self._streams.items()):
            # First the reason, because a cancelled handler reports none.
            stream.disconnect(UnreachableError(f"{MEMORY_PREFIX}{self.port} was closed"))
            task.cancel()


class LocalContext(StreamedContext):
    """Binds and connects within the process. All instances share one registry."""

    server_class = LocalServer
    access: ClassVar[AccessRights] = FULL_ACCESS

    def _stream_opener(self, topology_id: str, host: str, port: int) -> StreamOpener:
        del host  # there is only this process
        return memory_stream_opener(topology_id, port)


class _OwnProgramAccess(AccessRights):
    is_own_program = True


class OwnProgramContext(LocalContext):
    """Binds the server of a worker for the program in its own process."""

    access = _OwnProgramAccess()
