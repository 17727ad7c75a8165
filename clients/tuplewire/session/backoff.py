"""The delays between attempts, such as attempts to reconnect."""

from __future__ import annotations

from random import random


class Backoff:
    """The delays between attempts in seconds: exponential, capped, with full jitter.

    Source: M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
    """

    def __init__(self, initial: float, maximum: float) -> None:
        self._initial = self._ceiling = initial
        self._maximum = maximum

    def next(self) -> float:
        """Return the next delay: uniformly distributed between 0 and the cap of this attempt."""
        ceiling = min(self._maximum, self._ceiling)
        self._ceiling = 2 * ceiling
        return ceiling * random()  # noqa: S311 - no secret

    def reset(self) -> None:
        """Reset the delay, because an attempt succeeded."""
        self._ceiling = self._initial
