"""Which frames ask the other side to tell at once what it has taken.

A message that travels alone needs no acknowledgement soon, and one costs as much as the message. Where frames
follow each other quickly, acknowledgements are what makes few large frames of many small ones.
"""

from __future__ import annotations

from collections import deque

QUICK_FRAMES = 4
"""So many within QUICK_SECONDS are quick."""
QUICK_SECONDS = 0.002
MOST_UNASKED = 32
"""So many frames in a row, at most, ask for nothing: half of those that a session may have on the way."""


class Asking:
    """Decides for one stream of frames."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=QUICK_FRAMES - 1)
        self._unasked = 0

    def asks(self, now: float, *, pressing: bool = False) -> bool:
        """Return whether the next frame asks.

        Args:
            now: The time in seconds, of any clock.
            pressing: Whether somebody waits for what the other side says of it.
        """
        times = self._times
        quick = len(times) == QUICK_FRAMES - 1 and now - times[0] <= QUICK_SECONDS
        times.append(now)
        self._unasked += 1
        if not (pressing or quick or self._unasked >= MOST_UNASKED):
            return False
        times.clear()
        self._unasked = 0
        return True
