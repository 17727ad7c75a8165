"""Streams without a first message: their number and their time are limited."""

from __future__ import annotations

import asyncio

import pytest

from tuplewire.errors import MalformedError, ResourceLimitError
from tuplewire_service.messaging import server_stream as streamed_stream
from tuplewire_service.messaging.server_stream import PendingHandshakes


async def _never() -> bytes:
    await asyncio.Event().wait()
    return b""


async def _at_once() -> bytes:
    return b"hello"


async def test_oldest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit, the oldest silent streams are refused, and the new one is accepted."""
    monkeypatch.setattr(streamed_stream, "MAX_PENDING_HANDSHAKES", 3)

    silent = PendingHandshakes()
    waiting = [asyncio.create_task(silent.first(_never, "hello")) for _ in range(5)]
    assert await silent.first(_at_once, "hello") == b"hello"
    for refused in waiting[:2]:
        with pytest.raises(ResourceLimitError, match=r"over 3 streams .* send the hello immediately"):
            await refused
    assert len(silent) == 3
    for each in waiting[2:]:
        each.cancel()
    await asyncio.wait(waiting[2:])
    assert len(silent) == 0


async def test_one_that_speaks_is_silent_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams that have sent their first message do not count."""
    monkeypatch.setattr(streamed_stream, "MAX_PENDING_HANDSHAKES", 1)

    silent = PendingHandshakes()
    assert [await silent.first(_at_once, "hello") for _ in range(3)] == [b"hello"] * 3
    assert len(silent) == 0


async def test_time_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that is silent for too long is refused with the time limit."""
    monkeypatch.setattr(streamed_stream, "HELLO_SECONDS", 0.01)

    silent = PendingHandshakes()
    with pytest.raises(MalformedError, match=r"no subscribe within 0\.01 s"):
        await silent.first(_never, "subscribe")
    assert len(silent) == 0
