"""Ports that stay free while a worker that had one is away."""

from __future__ import annotations

import random
import socket

_CHANCE = random.SystemRandom()  # what a seed makes certain would be the same in tests side by side
_LOWEST, _EPHEMERAL = 10_000, 32_768
"""From the second on, Linux gives a port to whoever asks for any."""


def free_port() -> int:
    """Return a port that nobody has, and that nobody gets who does not name it."""
    while True:
        port = _CHANCE.randrange(_LOWEST, _EPHEMERAL)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def free_ports(count: int) -> list[int]:
    """Return so many of them."""
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(free_port())
    return list(ports)


def listen_peers(transport: str) -> list[str]:
    """Return the flags that give a worker a port for its peers, where that is not the one for programs."""
    return [f"--listen-peers=127.0.0.1:{free_port()}"] if transport == "zmq" else []
