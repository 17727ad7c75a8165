"""When to try again: to connect, and to be told what may be lost."""

from __future__ import annotations

from collections.abc import Callable

_MAX_DOUBLINGS = 32
PROBE_SECONDS = 1.0
"""A side that waits for news sends a probe after so long without any."""


class Backoff:
    """How long to wait before the next attempt: exponential, capped, with full jitter. Times in seconds.

    Success starts it anew. Source: M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
    """

    def __init__(self, initial: float, maximum: float, random: Callable[[], float]) -> None:
        self._initial = initial
        self._maximum = maximum
        self._random = random
        self._attempts = 0

    def next(self) -> float:
        """Return the next delay: uniform between 0 and the cap of this attempt."""
        ceiling = min(self._maximum, self._initial * 2.0 ** min(self._attempts, _MAX_DOUBLINGS))
        self._attempts += 1
        return ceiling * self._random()

    def succeeded(self) -> None:
        """Start anew: the connection was established."""
        self._attempts = 0


class ProbeTimer:
    """Says when to ask the other side to say everything again. Times are in seconds, of any clock.

    Acknowledgements and credit are absolute, so the next one makes up for a lost one. A probe makes sure that
    there is a next one. Source: TCP's window probe.
    """

    def __init__(self, now: float) -> None:
        self._due = now + PROBE_SECONDS

    def heard(self, now: float) -> None:
        """Note that there was news, or that a probe went out."""
        self._due = now + PROBE_SECONDS

    def wait(self, now: float) -> float:
        """Return how long it is until the probe is due; 0 when it is."""
        return max(0.0, self._due - now)
