"""Holds a writer up after a small frame, while others are on the way, so that the next one is larger."""

from __future__ import annotations

import asyncio
import contextlib

from tuplewire.session.pacing import Pacing


class Pacer:
    """Paces one writer of frames. Belongs to its loop."""

    def __init__(self, interval: float) -> None:
        """interval: see Pacing."""
        self._pacing = Pacing(interval)
        self._pressed = asyncio.Event()
        self.gathers = False
        """Whether the writer is held up: it will look for what has come meanwhile."""

    async def after(self, size_bytes: int) -> None:
        """Wait until a frame may follow the one of so many bytes that was written, or press() is called."""
        wait = self._pacing.wrote(asyncio.get_running_loop().time(), size_bytes)
        if not wait:
            return
        self._pressed.clear()
        self.gathers = True
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._pressed.wait()
        finally:
            self.gathers = False

    def press(self) -> None:
        """Let the next frame go: there is an answer to the ones before, or somebody waits for it."""
        self._pressed.set()
