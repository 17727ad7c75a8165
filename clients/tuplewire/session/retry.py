"""The times of retries: when to reconnect, and when to request a state that may have been lost."""

from __future__ import annotations

from collections.abc import Callable

_MAX_DOUBLINGS = 32
PROBE_SECONDS = 1.0
"""A side that waits for an update sends a probe after this time without one."""


class Backoff:
    """The delays between attempts: exponential, capped, with full jitter. Times are in seconds.

    A success resets the delay. Source: M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog,
    2015.
    """

    def __init__(self, initial: float, maximum: float, random: Callable[[], float]) -> None:
        self._initial = initial
        self._maximum = maximum
        self._random = random
        self._attempts = 0

    def next(self) -> float:
        """Return the next delay: uniformly distributed between 0 and the cap of this attempt."""
        ceiling = min(self._maximum, self._initial * 2.0 ** min(self._attempts, _MAX_DOUBLINGS))
        self._attempts += 1
        return ceiling * self._random()

    def succeeded(self) -> None:
        """Reset the delay, because the connection was established."""
        self._attempts = 0


class ProbeTimer:
    """The time of the next probe, which requests the full state. In seconds, from any monotonic clock.

    Acknowledgements and credit are absolute, so the next one replaces a lost one. A probe ensures that there
    is a next one. Source: TCP's window probe.
    """

    def __init__(self, now: float) -> None:
        self._due = now + PROBE_SECONDS

    def heard(self, now: float) -> None:
        """Restart the timer, because an update was received or a probe was sent."""
        self._due = now + PROBE_SECONDS

    def wait(self, now: float) -> float:
        """Return the time until the probe is due; 0 if it is due now."""
        return max(0.0, self._due - now)
