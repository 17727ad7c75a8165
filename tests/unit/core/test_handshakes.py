"""TLS handshakes are counted, and failed handshakes are logged once a minute."""

from __future__ import annotations

import logging

import pytest

from tuplewire_service.security.certificates import Handshakes


def test_handshakes_in_vain_make_a_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """Two handshakes for each connection are normal; more are logged with both counts of that minute."""
    now = 1000.0
    handshakes = Handshakes(lambda: now)

    def minute(begun: int, *peers: str) -> list[tuple[int, int]]:
        nonlocal now
        for _ in range(begun):
            handshakes.begin()
        for peer in peers:
            handshakes.called(peer)
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
    assert (handshakes.begun, handshakes.connections) == (5004, 3)


def test_peers_are_forgotten() -> None:
    """At most ten thousand peers are remembered, for any number of connections."""
    handshakes = Handshakes()
    for port in range(25_000):
        handshakes.called(f"ipv4:10.0.0.1:{port}")
    assert handshakes.connections == 25_000
    assert len(handshakes._peers) == 10_000
