"""An event that wakes waits for a condition of a worker. Design: docs/design/drain.md."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable


class ConditionEvent(asyncio.Event):
    """Set after a change that wait_until() may wait for. Call only from the event loop."""

    async def wait_until(self, condition: Callable[[], bool], deadline: float) -> None:
        """Wait until the condition holds, or the deadline (the loop's time) has passed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                while not condition():
                    self.clear()
                    await self.wait()
