"""A proxy that stands between two processes and breaks their connections on request."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_CHUNK_BYTES = 64 * 1024
_NO_LINGER = struct.pack("ii", 1, 0)
_UNIX = "unix://"


class FaultProxy:
    """Passes bytes on between whoever connects to `address` and the target; use it as a context manager.

    target, listen: host:port or unix:///path; port 0 takes any free one. Runs in a thread of its own; every
    method may be called from any thread, and has taken effect when it returns.

    Guarantee: a connection's bytes arrive in order and unchanged up to the point where it is cut, as with any
    TCP connection.
    """

    def __init__(self, target: str, listen: str = "127.0.0.1:0") -> None:
        self.target = target
        self.address = listen
        """Where to connect; with the real port once started."""
        self._loop = asyncio.new_event_loop()
        self._open = asyncio.Event()
        self._open.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy")

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._run(self._listen())
        except OSError:
            self._stop_thread()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<FaultProxy {self.address} -> {self.target}: {self.connections} connections>"

    @property
    def connections(self) -> int:
        """How many connections are open through it."""
        return len(self._tasks)

    def cut(self) -> int:
        """Reset every connection, as a crashed host or a firewall does; return how many there were.

        New connections are taken at once.
        """
        return self._run(self._cut())

    def black_hole(self) -> None:
        """Pass nothing on any more: connections stay open, new ones are taken, and nobody answers."""
        self._call(self._open.clear)

    def resume(self) -> None:
        """Pass everything on again; what was held back goes first."""
        self._call(self._open.set)

    def close(self) -> None:
        """Reset every connection and stop listening; does nothing the second time."""
        if self._thread.is_alive():
            self._run(self._close())
            self._stop_thread()
            if self.address.startswith(_UNIX):
                Path(self.address.removeprefix(_UNIX)).unlink(missing_ok=True)

    def _stop_thread(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, coroutine: Coroutine[Any, Any, int]) -> int:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _call(self, function: Callable[[], None]) -> None:
        async def call() -> int:
            function()
            return 0

        self._run(call())

    # --- on the loop -----------------------------------------------------------------------------

    async def _listen(self) -> int:
        if self.address.startswith(_UNIX):
            path = self.address.removeprefix(_UNIX)
            self._server = await asyncio.start_unix_server(self._accept, path)
        else:
            host, _, port = self.address.rpartition(":")
            self._server = await asyncio.start_server(self._accept, host, int(port))
            self.address = f"{host}:{self._server.sockets[0].getsockname()[1]}"
        return 0

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._carry(reader, writer), name="proxy connection")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            far_reader, far_writer = await self._connect()
        except OSError:
            _reset(writer)
            self._writers.discard(writer)
            return
        self._writers.add(far_writer)
        try:
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(reader, far_writer))
                pumps.create_task(self._pump(far_reader, writer))
        finally:
            for each in (writer, far_writer):
                _reset(each)
                self._writers.discard(each)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self.target.startswith(_UNIX):
            return await asyncio.open_unix_connection(self.target.removeprefix(_UNIX))
        host, _, port = self.target.rpartition(":")
        return await asyncio.open_connection(host, int(port))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A broken connection ends the pump like an orderly end does.
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK_BYTES):
                await self._open.wait()
                writer.write(data)
                await writer.drain()
            writer.write_eof()

    async def _cut(self) -> int:
        tasks = list(self._tasks)
        for writer in list(self._writers):
            _reset(writer)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return len(tasks)

    async def _close(self) -> int:
        if self._server is not None:
            self._server.close()
        await self._cut()
        return 0


def _reset(writer: asyncio.StreamWriter) -> None:
    """Break a connection off: the peer sees a reset (over TCP), and loses what was on the way."""
    connection = writer.get_extra_info("socket")
    if connection is not None and connection.family != socket.AF_UNIX and connection.fileno() >= 0:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    writer.transport.abort()
