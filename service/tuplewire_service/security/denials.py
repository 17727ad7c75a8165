"""Counts who is turned away and why, and says so in the log without filling it."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

logger = logging.getLogger(__name__)

REASONS = ("no_token", "wrong_token", "name", "worker", "session", "topology", "task", "control")
"""Why somebody is denied; see service/SECURITY.md."""
_QUIET_SECONDS = 60.0
_MAX_REMEMBERED = 1000


class Denials:
    """For use on one thread. counts: by reason."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.counts: Counter[str] = Counter()
        self._clock = clock
        self._logged: dict[tuple[str, str], float] = {}

    def note(self, client: str, reason: str, detail: str) -> None:
        """Count one, and log it when this client was not logged for this reason within the last minute."""
        self.counts[reason] += 1
        now = self._clock()
        key = (client, reason)
        if now - self._logged.get(key, -_QUIET_SECONDS) < _QUIET_SECONDS:
            return
        self._logged.pop(key, None)
        while len(self._logged) >= _MAX_REMEMBERED:
            del self._logged[next(iter(self._logged))]
        self._logged[key] = now
        logger.warning("access.denied", extra={"client": client, "reason": reason, "detail": detail})
