"""When to ask the other side to say everything again.

Acknowledgements and credit are absolute, so the next one makes up for a lost one. A probe makes sure that
there is a next one. Source: TCP's window probe.
"""

from __future__ import annotations

PROBE_SECONDS = 1.0
"""A side that waits for news sends a probe after so long without any."""


class ProbeTimer:
    """Says when a probe is due. Times are in seconds, of any clock that does not go back."""

    __slots__ = ("_due",)

    def __init__(self, now: float) -> None:
        self._due = now + PROBE_SECONDS

    def heard(self, now: float) -> None:
        """Note that there was news, or that a probe went out."""
        self._due = now + PROBE_SECONDS

    def wait(self, now: float) -> float:
        """Return how long it is until the probe is due; 0 when it is."""
        return max(0.0, self._due - now)
