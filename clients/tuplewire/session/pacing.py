"""Pacing of small frames, because few large frames are cheaper than many small ones.

A frame costs each process on its route as much as hundreds of small messages. A short burst of small frames
is therefore sent without delay. Later small frames are sent at an interval, and messages that arrive in
between share a frame.

Design: docs/design/credit.md.
"""

from __future__ import annotations

SMALL_FRAME_BYTES = 64 * 1024
"""Frames of at least this size are not delayed."""
BURST_FRAMES = 8
"""The number of small frames that may be sent without delay."""


class Pacing:
    """The pacing of one stream of frames, by the generic cell rate algorithm (ITU-T I.371)."""

    def __init__(self, interval: float) -> None:
        """Start a stream. `interval` is the time between small frames in seconds; 0 disables pacing."""
        self._interval = interval
        self._tolerance = interval * (BURST_FRAMES - 1)
        self._due = 0.0
        """The time at which the next frame is due if all small frames keep the interval."""

    def wrote(self, now: float, size_bytes: int) -> float:
        """Record a written frame; return the delay in seconds before the next frame may be written.

        `now` is in seconds, from any monotonic clock.
        """
        if size_bytes < SMALL_FRAME_BYTES:
            self._due = max(self._due, now) + self._interval
        return max(0.0, self._due - self._tolerance - now)
