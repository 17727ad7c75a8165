"""The kinds of settings that only a worker process has: addresses, socket paths and file modes."""

from __future__ import annotations

import ipaddress

from tuplewire.addresses import bracketed, join_host_port, split_host_port
from tuplewire.errors import ConfigError
from tuplewire.settings import Kind, within

MAX_SOCKET_PATH_BYTES = 107
"""What Linux takes as a Unix socket's path: `sun_path` without its final zero byte."""


def _is_ipv6(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).version == 6
    except ValueError:
        return False


def _advertised(address: str) -> str:
    """Read an address that others use: host:port, or only a host (then the port is the bound one).

    A host that is an IPv6 address may come without brackets, as Kubernetes has a pod's.
    """
    if not address:
        raise ValueError
    if _is_ipv6(address):
        return bracketed(address)
    if ":" not in address or (address.startswith("[") and address.endswith("]")):
        return address
    host, port = split_host_port(address)
    if port == 0:
        raise ConfigError(f"{address!r} has port 0; leave the port out to advertise the bound one")
    return join_host_port(host, port)


def _socket_path(value: str) -> str:
    """Read the path of a Unix socket, with or without `unix://` before it."""
    path = value.removeprefix("unix://")
    if not path.startswith("/"):
        raise ConfigError(f"{value!r} is not an absolute path, such as /run/tuplewire/worker.sock")
    if len(path.encode()) > MAX_SOCKET_PATH_BYTES:
        raise ConfigError(
            f"{value!r} is longer than the {MAX_SOCKET_PATH_BYTES} bytes that a Unix socket's path may have"
        )
    return path


HOST_PORT = Kind("HOST:PORT", "host:port", str, lambda address: join_host_port(*split_host_port(address)))
ADVERTISED = Kind("HOST[:PORT]", "a host, or host:port", str, _advertised)
SOCKET_PATH = Kind("PATH", "an absolute path", str, _socket_path)
MODE = Kind(
    "MODE",
    "a file mode in octal digits, such as 0660",
    int,
    within(1, 0o777),
    lambda text: int(text, 8),
    write=lambda value: f"{value:04o}",
)
