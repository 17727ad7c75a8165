"""Backoff: the delay before the next connection attempt."""

from __future__ import annotations

import random

from tuplewire.session.retry import Backoff


def test_doubles_up_to_the_cap() -> None:
    """The ceiling of the delay doubles with every attempt and stops at the maximum."""
    backoff = Backoff(0.5, 3.0, lambda: 1.0)
    assert [backoff.next() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_full_jitter() -> None:
    """A delay is random between 0 and its ceiling, so that many senders do not reconnect together."""
    rolls = iter([0.0, 0.25, 0.99])
    backoff = Backoff(1.0, 100.0, lambda: next(rolls))
    assert [backoff.next() for _ in range(3)] == [0.0, 0.5, 3.96]


def test_success_starts_anew() -> None:
    """After a successful connection, the next delay is as short as the first."""
    backoff = Backoff(0.5, 60.0, lambda: 1.0)
    for _ in range(4):
        backoff.next()
    backoff.succeeded()
    assert backoff.next() == 0.5


def test_never_overflows() -> None:
    """The delay stays at the maximum for a peer that remains unreachable."""
    backoff = Backoff(0.05, 2.0, random.Random(1).random)
    assert max(backoff.next() for _ in range(5_000)) <= 2.0
