"""Ports that stay free while the worker that used one is stopped."""

from __future__ import annotations

import random
import socket

_CHANCE = random.SystemRandom()  # a fixed seed would give parallel tests the same ports
_LOWEST, _EPHEMERAL = 10_000, 32_768
"""From the second number on, Linux assigns ports to programs that request any free port."""


def free_port() -> int:
    """Return a free port that Linux does not assign automatically."""
    while True:
        port = _CHANCE.randrange(_LOWEST, _EPHEMERAL)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def free_ports(count: int) -> list[int]:
    """Return `count` different free ports."""
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(free_port())
    return list(ports)


def listen_peers(transport: str) -> list[str]:
    """Return the flags for a worker's port for peers, if its transport needs a separate one."""
    return [f"--listen-peers=127.0.0.1:{free_port()}"] if transport == "zmq" else []
