"""Addresses as they are written: host:port, an IPv6 host in brackets; where a program finds its worker."""

from __future__ import annotations

import ipaddress
import os
from urllib.parse import quote

from tuplewire.errors import ConfigError

ADDRESS_VARIABLE = "TUPLEWIRE_ADDRESS"
TOPOLOGY_VARIABLE = "TUPLEWIRE_TOPOLOGY"
_DEFAULT_TOPOLOGY = "default"


def split_host_port(address: str) -> tuple[str, int]:
    """Split host:port; an IPv6 host loses its brackets. Port 0 is any free one, to listen on.

    Raises ConfigError when it is not host:port.
    """
    host, _, port = address.rpartition(":")
    in_brackets = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if in_brackets else host
    number = int(port) if port.isascii() and port.isdigit() else -1
    if not host or (":" in host) != in_brackets or not 0 <= number <= 65535:
        raise ConfigError(f"{address!r} is not host:port; write 127.0.0.1:6700, or [::1]:6700")
    return host, number


def check_reachable(address: str) -> str:
    """Return host:port as it is; ConfigError when it is not that, or has port 0, where nobody is reached."""
    if split_host_port(address)[1] == 0:
        raise ConfigError(f"{address!r} is not host:port of somebody; name the port where it listens")
    return address


def join_host_port(host: str, port: int) -> str:
    """Return host:port; an IPv6 host gets brackets."""
    return f"{bracketed(host)}:{port}"


def bracketed(host: str) -> str:
    """Return a host as it is written before a port; one that has its brackets keeps them."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def is_loopback(host: str) -> bool:
    """Whether a host, as it is written, never leaves this machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def resolve_address(address: str | None) -> str:
    """Return the address, or that of TUPLEWIRE_ADDRESS; ConfigError when it is missing or malformed.

    An address is `host:port`, `[v6]:port` or `unix:///path`.
    """
    address = address or os.environ.get(ADDRESS_VARIABLE)
    if not address:
        raise ConfigError(
            f"no worker address: pass one (host:port or unix:///path), or set {ADDRESS_VARIABLE}"
        )
    _check_text(f"address {address!r}", address)
    if address.startswith("unix:"):
        if not address.startswith("unix:///"):
            raise ConfigError(f"address {address!r}: a Unix socket is written unix:///absolute/path")
        return address
    try:
        return check_reachable(address)
    except ConfigError as error:
        raise ConfigError(
            f"address {address!r} is neither host:port nor unix:///path; write 127.0.0.1:6700, or [::1]:6700"
        ) from error


def grpc_target(address: str) -> str:
    """Return an address as a gRPC target: gRPC parses URIs, so percent signs and `dns:` need encoding."""
    if address.startswith("unix:"):
        return "unix://" + quote(address.removeprefix("unix://"))
    return "dns:///" + quote(address, safe="[]:")


def resolve_addresses(addresses: str | None) -> str:
    """Do as resolve_address() with one or more of them, separated by commas."""
    return ",".join(resolve_address(each.strip()) for each in (addresses or resolve_address(None)).split(","))


def resolve_topology(topology: str | None) -> str:
    """Return the topology, or that of TUPLEWIRE_TOPOLOGY, or `default`; ConfigError for what is no text."""
    topology = topology or os.environ.get(TOPOLOGY_VARIABLE) or _DEFAULT_TOPOLOGY
    _check_text(f"topology {topology!r}", topology)
    return topology


def _check_text(what: str, text: str) -> None:
    """Raise ConfigError for what Python has read in another encoding than the shell that wrote it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{what} cannot be sent: Python took it for bytes; set LC_ALL=C.UTF-8") from error
