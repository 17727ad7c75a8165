"""Addresses as text: host:port with an IPv6 host in brackets, and the addresses of workers.

Used by clients, Spark's data source, the command, workers and clusters. Owns no state. Thread-safe.
"""

from __future__ import annotations

import ipaddress
import os
from typing import NamedTuple
from urllib.parse import quote

from tuplewire.errors import ConfigError

ADDRESS_VARIABLE = "TUPLEWIRE_ADDRESS"
TOPOLOGY_VARIABLE = "TUPLEWIRE_TOPOLOGY"


class Peer(NamedTuple):
    """A worker's id and its address. A worker that restarts at another address is another peer."""

    worker_id: str
    address: str


def split_host_port(address: str) -> tuple[str, int]:
    """Split host:port, without an IPv6 host's brackets. Raises ConfigError. Port 0 is valid."""
    host, _, port = address.rpartition(":")
    in_brackets = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if in_brackets else host
    number = int(port) if port.isascii() and port.isdigit() else -1
    if not host or (":" in host) != in_brackets or not 0 <= number <= 65535:
        raise ConfigError(f"{address!r} is not host:port (up to 65535); write 127.0.0.1:6700, or [::1]:6700")
    return host, number


def check_address_syntax(address: str) -> str:
    """Return host:port unchanged. Raises ConfigError if it is not host:port, or has port 0."""
    if split_host_port(address)[1] == 0:
        raise ConfigError(f"{address!r} is not the host:port of a server; give the port on which it listens")
    return address


def join_host_port(host: str, port: int) -> str:
    """Return host:port, with brackets around an IPv6 host."""
    return f"{add_brackets(host)}:{port}"


def add_brackets(host: str) -> str:
    """Return a host with brackets if it is an IPv6 address without them."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def is_loopback(host: str) -> bool:
    """Return True if a host is `localhost` or a loopback IP address, without a lookup."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def resolve_address(address: str | None) -> str:
    """Return the address (host:port or unix:///path), or TUPLEWIRE_ADDRESS. Raises ConfigError."""
    address = address or os.environ.get(ADDRESS_VARIABLE)
    if not address:
        raise ConfigError(
            f"no worker address: pass one (host:port or unix:///path), or set {ADDRESS_VARIABLE}"
        )
    check_text(f"address {address!r}", address)
    if address.startswith("unix:"):
        if not address.startswith("unix:///"):
            raise ConfigError(f"address {address!r}: a Unix socket is written unix:///absolute/path")
        return address
    try:
        return check_address_syntax(address)
    except ConfigError as error:
        raise ConfigError(
            f"address {address!r} is neither host:port, as 127.0.0.1:6700 or [::1]:6700, nor unix:///path"
        ) from error


def grpc_target(address: str) -> str:
    """Return an address as a gRPC target URI (dns:/// or unix://), with special characters encoded."""
    if address.startswith("unix:"):
        return "unix://" + quote(address.removeprefix("unix://"))
    return "dns:///" + quote(address, safe="[]:")


def resolve_addresses(addresses: str | None) -> str:
    """Resolve one or more comma-separated addresses, as resolve_address() does."""
    return ",".join(resolve_address(each.strip()) for each in (addresses or resolve_address(None)).split(","))


def resolve_topology(topology: str | None) -> str:
    """Return the topology, or TUPLEWIRE_TOPOLOGY, or `default`. Raises ConfigError for invalid Unicode."""
    topology = topology or os.environ.get(TOPOLOGY_VARIABLE) or "default"
    check_text(f"topology {topology!r}", topology)
    return topology


def check_text(label: str, text: str) -> None:
    """Raise ConfigError if it is no text, or if Python decoded it with another encoding than the shell's."""
    if not isinstance(text, str):
        raise ConfigError(f"{label} is not a str")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{label} is not valid Unicode: Python misread it; set LC_ALL=C.UTF-8") from error
