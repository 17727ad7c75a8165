"""How late an event loop is: how long something that is due has to wait until the loop gets to it."""

from __future__ import annotations

from tuplewire.session.durations import Durations

INTERVAL_SECONDS = 0.1
_MOST_PROBES = 1000


class LoopLag:
    """Probes that are due at an even pace. The clock comes from outside.

    A loop that is blocked for two seconds takes up one probe, and twenty were due meanwhile: all of them
    count, each with its own lateness, so that what is seldom and long shows as what it is.
    """

    __slots__ = ("_due", "lag")

    def __init__(self, now: float) -> None:
        self.lag = Durations()
        self._due = now + INTERVAL_SECONDS

    def probe(self, now: float) -> float:
        """Note that the loop has got to the probe; return how many seconds it is until the next."""
        late = now - self._due
        probes = int(max(0.0, late) / INTERVAL_SECONDS) + 1
        for missed in range(min(probes, _MOST_PROBES)):
            self.lag.add(late - missed * INTERVAL_SECONDS)
        self._due += probes * INTERVAL_SECONDS
        return self._due - now
