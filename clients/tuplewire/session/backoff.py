"""How long to wait before the next attempt to connect.

Source: "full jitter" of M. Brooker, "Exponential Backoff And Jitter" (AWS Architecture Blog, 2015).
"""

from __future__ import annotations

from collections.abc import Callable

_MAX_DOUBLINGS = 32


class Backoff:
    """Exponential, capped, with full jitter; success starts it anew. Times in seconds."""

    __slots__ = ("_attempts", "_initial", "_maximum", "_random")

    def __init__(self, initial: float, maximum: float, random: Callable[[], float]) -> None:
        self._initial = initial
        self._maximum = maximum
        self._random = random
        self._attempts = 0

    def next(self) -> float:
        """Return the next delay: uniform between 0 and the cap of this attempt."""
        ceiling = min(self._maximum, self._initial * 2 ** min(self._attempts, _MAX_DOUBLINGS))
        self._attempts += 1
        delay: float = ceiling * self._random()
        return delay

    def succeeded(self) -> None:
        """Start anew: the connection was established."""
        self._attempts = 0
