"""Pacing of small frames, because few large frames are cheaper than many small ones.

A short burst of small frames is sent without delay. Later small frames are sent at an interval, and messages
that arrive in between share a frame. Design: docs/design/credit.md.
"""

from __future__ import annotations

import asyncio
import contextlib

SMALL_FRAME_BYTES = 64 * 1024
"""Frames of at least this size add no delay for the next frame."""
BURST_FRAMES = 8
"""The number of small frames that may be sent without delay."""


class Pacer:
    """Paces one writer by the generic cell rate algorithm (ITU-T I.371). Call only from the event loop."""

    def __init__(self, interval: float) -> None:
        """Start without a delay. interval: the time between small frames in seconds; 0 disables pacing."""
        self._interval = interval
        self._tolerance = interval * (BURST_FRAMES - 1)
        self._next_due = 0.0
        """The time at which the next frame is due if all small frames keep the interval."""
        self._released = asyncio.Event()
        self.lingering = False
        """True while the writer is delayed: the next frame includes messages that arrive in that time."""

    def record_write(self, now: float, size_bytes: int) -> float:
        """Record a frame written at `now` (seconds); return the seconds until the next one may be written."""
        if size_bytes < SMALL_FRAME_BYTES:
            # The maximum: a pause allows one burst, regardless of the length of the pause.
            self._next_due = max(self._next_due, now) + self._interval
        return max(0.0, self._next_due - self._tolerance - now)

    async def linger(self, seconds: float) -> None:
        """Wait for this time, or until release_next() is called."""
        self._released.clear()
        self.lingering = True
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._released.wait()
        finally:
            self.lingering = False

    def release_next(self) -> None:
        """Release the next frame: the previous ones are acknowledged, or a caller waits for it."""
        self._released.set()
