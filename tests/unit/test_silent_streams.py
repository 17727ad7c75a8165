"""Streams that say nothing: their number and their time are bounded."""

from __future__ import annotations

import asyncio

import pytest

from tuplewire.errors import MalformedError, ResourceLimitError
from tuplewire_service.messaging.streamed.streamed_stream import SilentStreams
from tuplewire_service.messaging.transport_settings import ConnectionLimits


async def _never() -> bytes:
    await asyncio.Event().wait()
    return b""


async def _at_once() -> bytes:
    return b"hello"


def test_oldest_goes() -> None:
    """With one more than may be silent, the first that came is refused by name, and the new one may speak."""

    async def test() -> None:
        silent = SilentStreams(ConnectionLimits(max_silent_streams=3))
        waiting = [asyncio.create_task(silent.first(_never, "hello")) for _ in range(5)]
        assert await silent.first(_at_once, "hello") == b"hello"
        for refused in waiting[:2]:
            with pytest.raises(
                ResourceLimitError, match="send the hello at once, or raise max_silent_streams"
            ):
                await refused
        assert len(silent) == 3
        for each in waiting[2:]:
            each.cancel()
        await asyncio.wait(waiting[2:])
        assert len(silent) == 0

    asyncio.run(test())


def test_one_that_speaks_is_silent_no_more() -> None:
    """Those that have spoken take no room from those that have not."""

    async def test() -> None:
        silent = SilentStreams(ConnectionLimits(max_silent_streams=1))
        assert [await silent.first(_at_once, "hello") for _ in range(3)] == [b"hello"] * 3
        assert len(silent) == 0

    asyncio.run(test())


def test_time_is_bounded() -> None:
    """Silence for longer than allowed is malformed; the error has the number."""

    async def test() -> None:
        silent = SilentStreams(ConnectionLimits(hello_seconds=0.01))
        with pytest.raises(MalformedError, match=r"no subscribe within 0\.01 s"):
            await silent.first(_never, "subscribe")
        assert len(silent) == 0

    asyncio.run(test())
