"""The addresses on which a process listens, read from /proc."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

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
                host = socket.inet_ntop(family, _packed(local.partition(":")[0]))
                found.add(host.removeprefix("::ffff:"))  # IPv4 on a socket for both families
    return found


def _packed(host: str) -> bytes:
    """Return an address of /proc/net: words of four bytes, each in the order of this machine."""
    return b"".join(bytes.fromhex(host[start : start + 8])[::-1] for start in range(0, len(host), 8))
