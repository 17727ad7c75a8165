"""Counts with their nouns."""

from __future__ import annotations

import pytest

from tuplewire.text.counts import counted


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 messages"), (1, "1 message"), (2, "2 messages"), (2000, "2,000 messages")]
)
def test_counts(count: int, text: str) -> None:
    """A noun is singular after 1 only."""
    assert counted(count, "message") == text
