"""Names in certificates and the lists of them."""

from __future__ import annotations

import pytest

from tuplewire.errors import ConfigError
from tuplewire.identity.credentials import allowed, matches, parse_names


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("worker.example", "worker.example"),
        ("Worker.Example", "worker.EXAMPLE"),
        ("a.workers.example", "*.workers.example"),
        ("*.workers.example", "*.workers.example"),
        ("10.0.0.1", "10.0.0.1"),
        ("spiffe://prod/worker", "spiffe://prod/worker"),
    ],
)
def test_names_that_match(name: str, pattern: str) -> None:
    """A name matches itself, DNS names whatever their case, and `*.` one label."""
    assert matches(name, pattern)


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("other.example", "worker.example"),
        ("workers.example", "*.workers.example"),
        ("a.b.workers.example", "*.workers.example"),
        (".workers.example", "*.workers.example"),
        ("*.workers.example", "a.workers.example"),
        ("spiffe://prod/Worker", "spiffe://prod/worker"),
        ("spiffe://a.workers.example", "*.workers.example"),
        ("me@a.workers.example", "*.workers.example"),
        ("a@b.workers.example", "*.workers.example"),
        ("", "*.example"),
    ],
)
def test_names_that_do_not_match(name: str, pattern: str) -> None:
    """Neither more labels nor fewer, nor a URI or an e-mail address that looks like one."""
    assert not matches(name, pattern)


def test_one_name_of_several_is_enough() -> None:
    """A certificate has several names, and a list several patterns."""
    assert allowed(["a.example", "spiffe://x"], ["b.example", "spiffe://x"])
    assert not allowed(["a.example"], [])
    assert not allowed([], ["a.example"])


def test_lists_are_read() -> None:
    """Commas stand between names, and spaces do not count."""
    assert parse_names(" a.example , *.b.example,,") == ("a.example", "*.b.example")


@pytest.mark.parametrize("wrong", ["*", "a.*.example", "a*.example", "*.", "**.example"])
def test_other_wildcards_are_errors(wrong: str) -> None:
    """A `*` that would be taken literally is not."""
    with pytest.raises(ConfigError, match="is no name in a certificate"):
        parse_names(f"a.example,{wrong}")
