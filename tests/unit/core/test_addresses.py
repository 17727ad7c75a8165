"""Addresses are read in one way wherever they are written."""

from __future__ import annotations

import pytest

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
    """An address comes apart, and together again; only when written does an IPv6 host have brackets."""
    assert split_host_port(address) == parts
    assert join_host_port(*parts) == address


def test_brackets_that_are_there_stay() -> None:
    """A host that comes with its brackets, as Spark has one, gets no second pair."""
    assert join_host_port("[fd00::1]", 6700) == "[fd00::1]:6700"


@pytest.mark.parametrize(
    "address", ["", "h", ":1", "h:", "h:0", "h:65536", "h:x", "h:-1", "h:\u0661", "fd00::1:6700"]
)
def test_nobody_is_reached_there(address: str) -> None:
    """Client, assignment and membership refuse the same addresses, an IPv6 host without brackets too."""
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
    """A wildcard, and any name that others may give, is none."""
    assert is_loopback(host) is loopback


def test_several_addresses_are_read_one_by_one() -> None:
    """One of them that is wrong is named."""
    assert resolve_addresses("a:1, unix:///b") == "a:1,unix:///b"
    with pytest.raises(ConfigError, match="'b'"):
        resolve_addresses("a:1,b")
