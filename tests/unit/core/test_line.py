"""Forwarding times of the fault proxy, with a clock that the test controls."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager

from helpers.hand_loop import HandLoop

from tuplewire_service.testing.fault_proxy import Conditions, Direction, Line

CHUNKS = 16
DATA = os.urandom(CHUNKS * 64 * 1024)


class Arrivals(asyncio.Transport):
    """The far end of a connection; records the time and size of arrivals."""

    def __init__(self, loop: HandLoop) -> None:
        super().__init__()
        self._loop = loop
        self._closed = False
        self.data = b""
        self.pieces: list[tuple[float, int]] = []
        """The time of each piece, and the number of bytes received by then."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.data += data
        self.pieces.append((self._loop.time(), len(self.data)))

    def is_closing(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True


@contextmanager
def carried(conditions: Conditions, data: bytes) -> Iterator[tuple[HandLoop, Arrivals]]:
    """Forward bytes that are all available immediately, on a loop with a manual clock."""
    loop = HandLoop()
    arrivals = Arrivals(loop)

    def begin() -> None:
        line, reader = Line(), asyncio.StreamReader()
        line.conditions = conditions
        writer = asyncio.StreamWriter(arrivals, asyncio.StreamReaderProtocol(reader), None, loop)
        loop.create_task(line.forward(Direction.TO_TARGET, reader, writer))
        reader.feed_data(data)

    loop.inside(begin)
    yield loop, arrivals
    arrivals.close()
    loop.kill("")
    loop.close()


def test_a_throttled_line_keeps_to_its_rate() -> None:
    """The bytes received never exceed the rate by more than one piece; at the end, all have arrived."""
    rate = len(DATA) / 100
    with carried(Conditions(bytes_per_second=rate), DATA) as (loop, arrivals):
        loop.pass_time(50)
        assert 0.4 * len(DATA) < len(arrivals.data) < 0.6 * len(DATA)
        loop.pass_time(51)
        assert arrivals.data == DATA
        piece = rate * 0.05
        assert all(size <= rate * at + piece for at, size in arrivals.pieces)
