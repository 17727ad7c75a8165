"""The entry points for Tuplewire's transport factory: an IContext, and a factory of contexts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from toy_transport.stream import DONE, ToyClientStream, ToyServerStream
from tuplewire.connection.stream import ClientStream, StreamBroken, StreamOpener
from tuplewire.errors import BindError, UnreachableError
from tuplewire_service.messaging.streamed_transport import StreamedContext, StreamedServer


class ToyServer(StreamedServer["ToyContext"]):
    """Listens on this machine."""

    async def _bind(self) -> int:
        self._tasks: set[asyncio.Task[None]] = set()
        try:
            self._listener = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        except OSError as error:
            raise BindError(f"cannot listen on port {self.port}: {error}; choose another one") from error
        port: int = self._listener.sockets[0].getsockname()[1]
        self.addresses = [f"toy://127.0.0.1:{port}"]
        return port

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        stream = ToyServerStream(reader, writer)
        try:
            with contextlib.suppress(StreamBroken):
                await self._handlers[(await stream.read() or b"").decode()](stream)
                await stream.put(DONE)
        finally:
            self._tasks.discard(task)
            stream.close()

    async def _unbind(self, grace: float | None) -> None:
        self._listener.close()
        if self._tasks and grace:
            await asyncio.wait(self._tasks, timeout=grace)
        for task in list(self._tasks):
            task.cancel()


class ToyContext(StreamedContext):
    """Has the settings of every transport."""

    server_class = ToyServer

    def _stream_opener(self, topology_id: str, host: str, port: int) -> StreamOpener:
        del topology_id  # the hello contains it

        @asynccontextmanager
        async def open_stream(method: str) -> AsyncIterator[ClientStream]:
            try:
                stream = ToyClientStream(*await asyncio.open_connection(host, port))
            except OSError as error:
                raise UnreachableError(f"{host}:{port}: {error}") from error
            try:
                await stream.write(method.encode())
                yield stream
            finally:
                stream.close()

        return open_stream


class ToyFactory:
    """A factory that is not an IContext: it creates and prepares one."""

    @staticmethod
    def make_context(conf: Mapping[str, Any]) -> ToyContext:
        context = ToyContext()
        context.prepare(conf)
        return context
