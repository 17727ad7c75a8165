"""The streams that have not said hello yet: they are bounded in number and in time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tuplewire.errors import MalformedError, ResourceLimitError
from tuplewire_service.messaging.transport_settings import ConnectionLimits

_Said = TypeVar("_Said")


class SilentStreams:
    """Waits for what streams say first. Belongs to the event loop.

    Guarantee: no more of them wait than the limits say, and none for longer. With one more, the one that has
    waited longest is refused: who means it says hello within milliseconds, and gets in however many do not.
    """

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._waiting: dict[object, asyncio.Timeout] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    async def first(self, read: Callable[[], Awaitable[_Said]], what: str) -> _Said:
        """Return what `read` returns. what: its name, for the errors.

        Raises MalformedError when it takes too long, and ResourceLimitError when others have come meanwhile.
        """
        seconds = self._limits.hello_seconds
        key = object()
        try:
            async with asyncio.timeout(seconds) as patience:
                self._waiting[key] = patience
                self._bound()
                return await read()
        except TimeoutError:
            if key in self._waiting:
                raise MalformedError(f"no {what} within {seconds:g} s") from None
            raise ResourceLimitError(
                f"over {self._limits.max_silent_streams} streams have said nothing yet, and this one was the "
                f"oldest: send the {what} at once, or raise max_silent_streams"
            ) from None
        finally:
            self._waiting.pop(key, None)

    def _bound(self) -> None:
        if len(self._waiting) > self._limits.max_silent_streams:
            oldest = next(iter(self._waiting))
            self._waiting.pop(oldest).reschedule(asyncio.get_running_loop().time())
