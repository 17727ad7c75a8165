"""Parsing of addresses: clients, assignments and memberships use the same rules."""

from __future__ import annotations

from typing import Any

import pytest

from tuplewire import Client
from tuplewire.errors import ConfigError
from tuplewire.membership import Membership
from tuplewire.settings.addresses import (
    is_loopback,
    join_host_port,
    resolve_address,
    resolve_addresses,
    split_host_port,
)
from tuplewire_service.worker.assignment import AssignedWorker, Assignment


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("localhost:6700", ("localhost", 6700)),
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("[::1]:6700", ("::1", 6700)),
    ],
)
def test_host_and_port(address: str, parts: tuple[str, int]) -> None:
    """An address splits into host and port, and joins again. IPv6 hosts get one pair of brackets."""
    host, port = split_host_port(address)
    assert (host, port) == parts
    assert join_host_port(host, port) == address
    assert join_host_port(address.rpartition(":")[0], port) == address


@pytest.mark.parametrize(
    "address", ["", "h", ":1", "h:", "h:0", "h:65536", "h:x", "h:-1", "h:\u0661", "fd00::1:6700"]
)
def test_nobody_is_reached_there(address: str) -> None:
    """Clients, assignments and memberships reject the same addresses, also IPv6 hosts without brackets."""
    with pytest.raises(ConfigError, match="host:port"):
        resolve_address(address or "x")
    with pytest.raises(ConfigError, match="host:port"):
        Assignment(1, "t", (AssignedWorker("w", address, ()),))
    with pytest.raises(ConfigError, match="host:port"):
        Membership([address], [1])


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("[::1]", True),
        ("LocalHost", True),
        ("0.0.0.0", False),  # noqa: S104
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.example", False),
    ],
)
def test_loopback(host: str, *, loopback: bool) -> None:
    """Wildcard addresses, and names that may resolve to other machines, are not loopback addresses."""
    assert is_loopback(host) is loopback


@pytest.mark.parametrize(("wrong", "told"), [("\udcff", "is not valid Unicode"), (5, "5 is not a str")])
@pytest.mark.parametrize("name", ["client_id", "worker_id", "topology"])
def test_names_that_cannot_be_sent(name: str, wrong: Any, told: str) -> None:
    """A client refuses a name that is no text, or that UTF-8 cannot encode."""
    with pytest.raises(ConfigError, match=f"{name} .*{told}"):
        Client("127.0.0.1:1", **{name: wrong})


def test_several_addresses_are_read_one_by_one() -> None:
    """The error names the invalid address in a list."""
    assert resolve_addresses("a:1, unix:///b") == "a:1,unix:///b"
    with pytest.raises(ConfigError, match="'b'"):
        resolve_addresses("a:1,b")
