"""How soon a frame may follow another: few large frames are cheaper than many small ones.

A frame costs each process on its way as much as hundreds of small messages. So small frames may follow
each other at once for a little, and after that at an interval: what comes meanwhile goes together.
"""

from __future__ import annotations

SMALL_FRAME_BYTES = 64 * 1024
"""A frame of so many bytes has gathered enough; the next one may follow at once."""
BURST_FRAMES = 8
"""So many small frames may follow each other at once."""


class Pacing:
    """Decides for one stream of frames, by the generic cell rate algorithm (ITU-T I.371)."""

    def __init__(self, interval: float) -> None:
        """interval: the time between small frames that go on coming, in seconds; 0: none."""
        self._interval = interval
        self._tolerance = interval * (BURST_FRAMES - 1)
        self._due = 0.0
        """When the next frame would be due if all kept to the interval."""

    def wrote(self, now: float, size_bytes: int) -> float:
        """Return in how many seconds the frame after this one may go. now: in seconds, of any clock."""
        if size_bytes < SMALL_FRAME_BYTES:
            self._due = max(self._due, now) + self._interval
        return max(0.0, self._due - self._tolerance - now)
