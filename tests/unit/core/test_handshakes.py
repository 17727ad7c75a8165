"""Handshakes: TLS handshakes are counted, and streams without a first message are limited."""

from __future__ import annotations

import asyncio
import logging
import time
from unittest.mock import AsyncMock

import pytest

from tuplewire.errors import ResourceLimitError
from tuplewire_service.messaging import server_stream as streamed_stream
from tuplewire_service.messaging.server_stream import PendingHandshakes
from tuplewire_service.security.certificates import Handshakes


def test_handshakes_in_vain_make_a_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """Two handshakes for each connection are normal; more are logged with both counts of that minute."""
    now = 1000.0
    handshakes = Handshakes(lambda: now)

    def minute(begun: int, *peers: str) -> list[tuple[int, int]]:
        nonlocal now
        for _ in range(begun):
            handshakes.count_start()
        for peer in peers:
            handshakes.record_call(peer)
        handshakes.report()  # too early
        assert not caplog.records
        now += 60.0
        handshakes.report()
        handshakes.report()
        lines = [(vars(each)["handshakes"], vars(each)["connections"]) for each in caplog.records]
        caplog.clear()
        return lines

    with caplog.at_level(logging.WARNING):
        assert minute(4, "ipv4:10.0.0.1:1", "ipv4:10.0.0.1:2") == []
        assert minute(5000, "ipv4:10.0.0.1:2", "ipv4:10.0.0.1:3") == [(5000, 1)]
        assert minute(0) == []
    assert (handshakes.started, handshakes.connections) == (5004, 3)


def test_peers_are_forgotten() -> None:
    """At most ten thousand peers are remembered, for any number of connections."""
    handshakes = Handshakes()
    for port in range(25_000):
        handshakes.record_call(f"ipv4:10.0.0.1:{port}")
    assert handshakes.connections == 25_000
    assert len(handshakes._peers) == 10_000


async def _never() -> bytes:
    await asyncio.Event().wait()
    return b""


async def test_the_oldest_goes_while_its_time_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new stream is accepted even if the oldest silent one exceeds its time in the same turn."""
    monkeypatch.setattr(streamed_stream, "MAX_PENDING_HANDSHAKES", 1)
    monkeypatch.setattr(streamed_stream, "HANDSHAKE_SECONDS", 0.01)
    silent = PendingHandshakes()
    oldest = asyncio.create_task(silent.read_first(_never, "hello"))
    await asyncio.sleep(0)
    time.sleep(0.02)  # noqa: ASYNC251 - the loop is busy when the time ends
    while not next(iter(silent._waiting.values())).expired():  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert await silent.read_first(AsyncMock(return_value=b"x"), "hello") == b"x"
    with pytest.raises(ResourceLimitError):
        await oldest
    assert len(silent) == 0
