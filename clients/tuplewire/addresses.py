"""Addresses as they are written: host:port, and an IPv6 host in brackets."""

from __future__ import annotations

import ipaddress

from tuplewire.errors import ConfigError


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
