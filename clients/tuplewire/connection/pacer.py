"""Delays a writer after a small frame while others are in flight, so that the next one is larger."""

from __future__ import annotations

import asyncio
import contextlib
import time

from tuplewire.session.pacing import Pacing


class Pacer:
    """Paces one writer of frames. Call only from the event loop."""

    def __init__(self, interval: float) -> None:
        """Start without a delay. interval: see Pacing."""
        self._pacing = Pacing(interval)
        self._pressed = asyncio.Event()
        self.gathers = False
        """True while the writer is delayed: the next frame includes messages that arrive in that time."""

    def wrote(self, size_bytes: int) -> float:
        """Record a written frame; return the number of seconds until the next one may be written."""
        return self._pacing.wrote(time.monotonic(), size_bytes)

    async def gather(self, seconds: float) -> None:
        """Wait for this time, or until press() is called."""
        self._pressed.clear()
        self.gathers = True
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._pressed.wait()
        finally:
            self.gathers = False

    def press(self) -> None:
        """Release the next frame: the previous ones are acknowledged, or a caller waits for it."""
        self._pressed.set()
