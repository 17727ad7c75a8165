"""Counts with their nouns, in texts for users."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """Return a count and its noun: `1 message`, `2,000 messages`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
