"""The current conditions of a proxy's connections, and one direction of a connection.

Used by fault_proxy.py. Owns the buffered bytes. Call only from the event loop. Design: docs/design/drain.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import math
from dataclasses import dataclass

_CHUNK_BYTES = 64 * 1024
_HELD_CHUNKS = 64
"""One direction of a connection stops reading when it buffers these, at most 4 MiB, like a full network."""
_PIECE_SECONDS = 0.05
"""A throttled connection forwards the bytes for this time at once, and then waits."""


class Direction(enum.StrEnum):
    """The direction of bytes."""

    TO_TARGET = "to target"
    TO_CLIENT = "to client"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """The faults that apply to forwarded bytes.

    delay_seconds: of each byte. bytes_per_second: the limit in each direction of each connection. silent: the
    directions that forward nothing, not even the close of an end.
    """

    delay_seconds: float = 0.0
    bytes_per_second: float = math.inf
    silent: frozenset[Direction] = frozenset()

    def __post_init__(self) -> None:
        if not 0 <= self.delay_seconds < math.inf:
            raise ValueError(f"a delay is 0 seconds or more, not {self.delay_seconds!r}")
        if not self.bytes_per_second > 0:
            raise ValueError(f"a throttle is more than 0 bytes per second, not {self.bytes_per_second!r}")


CLEAR = Conditions()


class Line:
    """The current conditions of all connections of a proxy. Call only from the event loop."""

    def __init__(self) -> None:
        self.conditions = CLEAR
        self._changed = asyncio.Event()

    def change(self, conditions: Conditions) -> None:
        """Set new conditions, and wake all calls of wait(), which may depend on the old ones."""
        self.conditions = conditions
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def wait(self, seconds: float | None) -> None:
        """Wait for `seconds` (None: without a limit), or until the conditions change."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()


def _now() -> float:
    return asyncio.get_running_loop().time()


class BrokenEndError(Exception):
    """One end of a connection was reset, so the other end must be reset, too."""


class OneWay:
    """Forwards the bytes of one direction of one connection, in order and unchanged."""

    def __init__(
        self, line: Line, direction: Direction, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._line = line
        self._direction = direction
        self._reader = reader
        self._writer = writer
        self._held: asyncio.Queue[tuple[float, memoryview]] = asyncio.Queue(_HELD_CHUNKS)
        self._broken = False

    async def run(self) -> None:
        """Forward all bytes and then the close. Raises BrokenEndError if the close is a reset."""
        async with asyncio.TaskGroup() as both:
            both.create_task(self._take_in())
            both.create_task(self._pass_on())

    async def _take_in(self) -> None:
        data = b"-"
        while data:
            try:
                data = await self._reader.read(_CHUNK_BYTES)
            except OSError:
                self._broken = True  # a reset, which is forwarded as a reset
                data = b""
            await self._held.put((_now(), memoryview(data)))

    async def _pass_on(self) -> None:
        rest = memoryview(b"")
        while True:
            if not rest:
                since, rest = await self._held.get()
            await self._until_due(since)
            if not rest:  # the end of the stream
                break
            rate = self._line.conditions.bytes_per_second
            size = len(rest) if rate == math.inf else max(1, int(rate * _PIECE_SECONDS))
            piece, rest = rest[:size], rest[size:]
            # If that end has closed, the other direction forwards the close to the end that this one reads.
            if not self._writer.is_closing():
                with contextlib.suppress(OSError):
                    self._writer.write(piece)
                    await self._writer.drain()
            if rate != math.inf:
                await self._line.wait(len(piece) / rate)
        if self._broken:
            raise BrokenEndError
        self._writer.write_eof()

    async def _until_due(self, since: float) -> None:
        while True:
            conditions = self._line.conditions
            left: float | None = since + conditions.delay_seconds - _now()
            if self._direction in conditions.silent:
                left = None  # until the next change of the conditions
            elif left is not None and left <= 0:
                return
            await self._line.wait(left)
