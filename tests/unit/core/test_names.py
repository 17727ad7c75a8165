"""Matching of the names in certificates against configured patterns."""

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
    """A name matches itself; DNS names ignore case, and `*.` matches exactly one label."""
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
    """A wildcard matches neither several labels, nor none, nor a URI or e-mail address."""
    assert not matches(name, pattern)


def test_one_name_of_several_is_enough() -> None:
    """A certificate is allowed if any of its names matches any pattern."""
    assert allowed(["a.example", "spiffe://x"], ["b.example", "spiffe://x"])
    assert not allowed(["a.example"], [])
    assert not allowed([], ["a.example"])


def test_lists_are_read() -> None:
    """A list is separated by commas, and spaces are ignored."""
    assert parse_names(" a.example , *.b.example,,") == ("a.example", "*.b.example")


@pytest.mark.parametrize("wrong", ["*", "a.*.example", "a*.example", "*.", "**.example"])
def test_other_wildcards_are_errors(wrong: str) -> None:
    """A `*` in any other position is an error, not a literal character."""
    with pytest.raises(ConfigError, match="is no name in a certificate"):
        parse_names(f"a.example,{wrong}")
