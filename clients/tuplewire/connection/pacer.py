"""Holds a writer up after a small frame, while others are on the way, so that the next one is larger."""

from __future__ import annotations

import asyncio
import contextlib
import time

from tuplewire.session.pacing import Pacing


class Pacer:
    """Paces one writer of frames. Belongs to its loop."""

    def __init__(self, interval: float) -> None:
        """interval: see Pacing."""
        self._pacing = Pacing(interval)
        self._pressed = asyncio.Event()
        self.gathers = False
        """Whether the writer is held up: it will look for what has come meanwhile."""

    def wrote(self, size_bytes: int) -> float:
        """Return in how many seconds a frame may follow the one of so many bytes that was written."""
        return self._pacing.wrote(time.monotonic(), size_bytes)

    async def gather(self, seconds: float) -> None:
        """Wait so long, or until press() is called."""
        self._pressed.clear()
        self.gathers = True
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._pressed.wait()
        finally:
            self.gathers = False

    def press(self) -> None:
        """Let the next frame go: there is an answer to the ones before, or somebody waits for it."""
        self._pressed.set()
