"""Telling several things together: a message on a stream costs as much as what it tells of."""

from __future__ import annotations

import asyncio

GATHERED = 4
"""So many are told together: half of the frames that a sender may have on the way."""
GATHER_SECONDS = 0.005
"""Fewer are after so long."""


class Gathering:
    """Sets an event when there is enough to tell, or when the first of it has waited. Belongs to the loop."""

    __slots__ = ("_event", "_loop", "_timer", "_untold")

    def __init__(self, event: asyncio.Event, loop: asyncio.AbstractEventLoop) -> None:
        self._event = event
        self._loop = loop
        self._untold = 0
        self._timer: asyncio.TimerHandle | None = None

    def add(self) -> None:
        """Note that there is one more thing to tell."""
        self._untold += 1
        if self._untold >= GATHERED:
            self._event.set()
        elif self._timer is None:
            self._timer = self._loop.call_later(GATHER_SECONDS, self._time_passed)

    def told(self) -> None:
        """Note that everything is being told."""
        self._untold = 0

    def _time_passed(self) -> None:
        self._timer = None
        if self._untold:
            self._event.set()
