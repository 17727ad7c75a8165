"""Ports that stay free while their worker is stopped, and the addresses on which a process listens."""

from __future__ import annotations

import contextlib
import os
import random
import socket
from collections import deque
from pathlib import Path

_CHANCE = random.SystemRandom()  # a fixed seed would give parallel runs the same ports
_PROCESS = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 8
_LOWEST, _HIGHEST = 10_000 + _PROCESS * 2_800, 12_800 + _PROCESS * 2_800
"""Each process of pytest has its own ports, because another test must not take the port of a stopped worker.
From 32,768 on, Linux assigns ports to programs that request any free port."""
_recent: deque[int] = deque(maxlen=500)


def free_port() -> int:
    """Return a free port that Linux does not assign automatically, and that was not returned lately."""
    while True:
        port = _CHANCE.randrange(_LOWEST, _HIGHEST)
        if port in _recent:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        _recent.append(port)
        return port


def free_ports(count: int) -> list[int]:
    """Return `count` different free ports."""
    return [free_port() for _ in range(count)]


def listen_peers(transport: str) -> list[str]:
    """Return the flags for a worker's port for peers, if its transport needs a separate one."""
    return [f"--listen-peers=127.0.0.1:{free_port()}"] if transport == "zmq" else []


_FAMILIES = {"tcp": socket.AF_INET, "tcp6": socket.AF_INET6}
_LISTENING = "0A"


def listening_hosts(process: int) -> set[str]:
    """Return the addresses, without ports, on which a process accepts TCP connections."""
    own = set()
    for link in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(OSError):  # it was closed in the meantime
            own.add(str(link.readlink()))
    found = set()
    for name, family in _FAMILIES.items():
        for line in Path(f"/proc/{process}/net/{name}").read_text(encoding="ascii").splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == _LISTENING and f"socket:[{inode}]" in own:
                words = local.partition(":")[0]  # of four bytes, each in the order of this machine
                packed = b"".join(bytes.fromhex(words[at : at + 8])[::-1] for at in range(0, len(words), 8))
                host = socket.inet_ntop(family, packed)
                found.add(host.removeprefix("::ffff:"))  # IPv4 on a socket for both families
    return found
