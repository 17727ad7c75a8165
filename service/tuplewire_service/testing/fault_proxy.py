"""A proxy between two processes that injects faults into their connections.

Used by tests. Owns its connections, an event loop and its thread. Thread-safe. Design: docs/design/drain.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import math
import socket
import struct
import threading
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, TypeVar

_CHUNK_BYTES = 64 * 1024
_MAX_CHUNKS = 64
"""One direction of a connection stops reading when it buffers these, at most 4 MiB, like a full network."""
_WRITE_INTERVAL_SECONDS = 0.05
"""A throttled connection forwards the bytes for this time in one write, and then waits."""
_NO_LINGER = struct.pack("ii", 1, 0)
_UNIX = "unix://"
_ChunkQueue = asyncio.Queue[tuple[float, bytes | None]]
"""Chunks with their times of arrival. The last one is empty for a close, or None for a reset."""
_Result = TypeVar("_Result")


class Direction(enum.StrEnum):
    """The direction of bytes."""

    TO_TARGET = "to target"
    TO_CLIENT = "to client"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """The faults that apply to forwarded bytes.

    delay_seconds: the time from the arrival of bytes until they are forwarded. bytes_per_second: the limit in
    each direction of each connection. silent_directions: they forward nothing, not even a close.
    """

    delay_seconds: float = 0.0
    bytes_per_second: float = math.inf
    silent_directions: frozenset[Direction] = frozenset()

    def __post_init__(self) -> None:
        if not 0 <= self.delay_seconds < math.inf:
            raise ValueError(f"delay_seconds must be finite and at least 0, not {self.delay_seconds!r}")
        if not self.bytes_per_second > 0:
            raise ValueError(f"bytes_per_second must be more than 0, not {self.bytes_per_second!r}")


class FaultProxy:
    """Forwards bytes between clients of `address` and the target. Use it as a context manager. Thread-safe.

    A method has taken effect when it returns.

    Faults can be combined. A second delay or throttle replaces the first; resume() removes all faults.
    Each fault applies to all current and later connections. At most 4 MiB are buffered in each direction of a
    connection. Then the proxy stops reading, like a full network.

    Guarantee: a connection's bytes arrive in order and unchanged until it is cut, as in any TCP connection. A
    close or reset of one end reaches the other end after these bytes, under the same conditions.

    Args:
        target: The address to forward to, host:port or unix:///path.
        listen: The address for clients, in the same form. Port 0 selects a free port; see `address`.
    """

    def __init__(self, target: str, listen: str = "127.0.0.1:0") -> None:
        self.target = target
        self.address = listen
        """The address for clients. It has the actual port after the start."""
        self._loop = asyncio.new_event_loop()
        self.conditions = Conditions()
        """The current conditions."""
        self._changed = asyncio.Event()
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

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def connection_count(self) -> int:
        """The number of open connections."""
        return len(self._tasks)

    def cut(self) -> int:
        """Reset every connection, like a killed process, and return their number. New ones are accepted."""
        return self._run(self._cut())

    def black_hole(self) -> None:
        """Forward nothing: connections remain open, and new ones are accepted, but get no answer."""
        self._change(silent_directions=frozenset(Direction))

    def half_open(self, direction: Direction = Direction.TO_CLIENT) -> None:
        """Forward nothing in one direction, not even a close; by default, from the target to its clients."""
        self._change(silent_directions=self.conditions.silent_directions | {direction})

    def delay(self, seconds: float) -> None:
        """Delay each byte, in both directions. Raises ValueError if the delay is negative or infinite."""
        self._change(delay_seconds=seconds)

    def throttle(self, bytes_per_second: float) -> None:
        """Limit the rate in each direction of each connection. Raises ValueError unless it is positive."""
        self._change(bytes_per_second=bytes_per_second)

    def resume(self) -> None:
        """Remove all faults. Buffered bytes are forwarded first."""
        self._run(self._set_conditions(Conditions()))

    def close(self) -> None:
        """Reset every connection and stop listening; a second call has no effect."""
        if self._thread.is_alive():
            self._run(self._close())
            self._stop_thread()
            if self.address.startswith(_UNIX):
                Path(self.address.removeprefix(_UNIX)).unlink(missing_ok=True)

    def _stop_thread(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _change(self, **conditions: Any) -> None:
        self._run(self._set_conditions(replace(self.conditions, **conditions)))

    # --- on the loop -----------------------------------------------------------------------------

    async def _listen(self) -> None:
        if self.address.startswith(_UNIX):
            self._server = await asyncio.start_unix_server(self._accept, self.address.removeprefix(_UNIX))
        else:
            host, _, port = self.address.rpartition(":")
            self._server = await asyncio.start_server(self._accept, host, int(port))
            self.address = f"{host}:{self._server.sockets[0].getsockname()[1]}"

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)  # here: a task that is cancelled immediately never starts
        task = self._loop.create_task(self._serve_stream(reader, writer), name="proxy connection")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve_stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await self._connect()
        except BaseException as error:
            _reset(writer)
            self._writers.discard(writer)
            if isinstance(error, OSError):  # the target is unreachable; the client gets a reset
                return
            raise
        self._writers.add(far_writer)
        try:
            async with asyncio.TaskGroup() as all_four:
                for direction, source, sink in (
                    (Direction.TO_TARGET, reader, far_writer),
                    (Direction.TO_CLIENT, far_reader, writer),
                ):
                    chunks: _ChunkQueue = asyncio.Queue(_MAX_CHUNKS)
                    all_four.create_task(_receive(source, chunks))
                    all_four.create_task(self._forward(direction, chunks, sink))
            for each in (writer, far_writer):
                each.close()
                await each.wait_closed()  # without a limit, until the peer has all bytes
        except* OSError:
            pass  # one end was reset, so the other end is reset, too
        finally:
            for each in (writer, far_writer):
                _reset(each)
                self._writers.discard(each)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self.target.startswith(_UNIX):
            return await asyncio.open_unix_connection(self.target.removeprefix(_UNIX))
        host, _, port = self.target.rpartition(":")
        return await asyncio.open_connection(host, int(port))

    async def _forward(self, direction: Direction, chunks: _ChunkQueue, writer: asyncio.StreamWriter) -> None:
        """Forward one direction, and then the close. Raises ConnectionResetError if the close is a reset."""
        unsent: bytes | None = b""
        while True:
            if not unsent:
                arrived_at, unsent = await chunks.get()
            await self._wait_until_due(direction, arrived_at)
            if not unsent:  # the end of the stream
                break
            rate = self.conditions.bytes_per_second
            size = len(unsent) if rate == math.inf else max(1, int(rate * _WRITE_INTERVAL_SECONDS))
            piece, unsent = unsent[:size], unsent[size:]
            # If that end has closed, the other direction forwards the close to the end that this one reads.
            if not writer.is_closing():
                with contextlib.suppress(OSError):
                    writer.write(piece)
                    await writer.drain()
            if rate != math.inf:
                await self._wait(len(piece) / rate)
        if unsent is None:
            raise ConnectionResetError
        writer.write_eof()

    async def _wait_until_due(self, direction: Direction, since: float) -> None:
        while True:
            silent = direction in self.conditions.silent_directions  # until the next change of the conditions
            left = None if silent else since + self.conditions.delay_seconds - self._loop.time()
            if left is not None and left <= 0:
                return
            await self._wait(left)

    async def _wait(self, seconds: float | None) -> None:
        """Wait for `seconds` (None: without a limit), or until the conditions change."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    async def _set_conditions(self, conditions: Conditions) -> None:
        """Apply new conditions, and wake all calls of _wait(), which may depend on the old ones."""
        self.conditions = conditions
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _cut(self) -> int:
        tasks = list(self._tasks)
        for writer in list(self._writers):
            _reset(writer)
            self._writers.discard(writer)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return len(tasks)

    async def _close(self) -> None:
        assert self._server is not None
        # asyncio forgets an accepted connection if the server is closed before the connection is set up. So
        # stop accepting, wait until all are set up and cut, and then close the server.
        for listening in self._server.sockets:
            self._loop.remove_reader(listening.fileno())
        while asyncio.all_tasks() - {asyncio.current_task()}:
            await self._cut()
            await asyncio.sleep(0)
        self._server.close()
        await asyncio.sleep(0)  # the last reset connections close in the next turn of the loop


async def _receive(reader: asyncio.StreamReader, chunks: _ChunkQueue) -> None:
    data: bytes | None = b"-"
    while data:
        try:
            data = await reader.read(_CHUNK_BYTES)
        except OSError:
            data = None  # a reset, which is forwarded as a reset
        await chunks.put((asyncio.get_running_loop().time(), data))


def _reset(writer: asyncio.StreamWriter) -> None:
    """Abort a connection. Over TCP, the peer gets a reset; bytes in transit are lost."""
    connection = writer.get_extra_info("socket")
    if connection is not None and connection.family != socket.AF_UNIX and connection.fileno() >= 0:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    writer.transport.abort()
