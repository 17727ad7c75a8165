"""Something has happened in a worker: whoever waits for a condition looks again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable


class Activity(asyncio.Event):
    """Set where something has changed that until() may wait for. Belongs to the event loop."""

    async def until(self, condition: Callable[[], bool], deadline: float) -> None:
        """Wait until the condition holds, or the deadline (the loop's time) has passed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                while not condition():
                    self.clear()
                    await self.wait()
