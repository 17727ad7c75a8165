"""What carries a session: a stream of requests to a worker and of its answers, as bytes.

A transport gives one, and the session above it does the rest: when a stream breaks, another one is opened and
the session resumes. So a stream need not be reliable, but what it does carry must be whole and in order.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from tuplewire.errors import TuplewireError
from tuplewire.session.flow import OutFrame
from tuplewire.wire.codec import encode_frame

GATHER_SECONDS = 0.02
"""What the other side does not ask for is told after so long."""


class StreamBroken(Exception):  # noqa: N818  it is an event, of which the stream then says the reason
    """A stream has ended, and takes or gives nothing more."""


class MessageStream(ABC):
    """One stream of either side. Belongs to the event loop; one coroutine writes at a time, and one reads."""

    @abstractmethod
    async def write(self, data: bytes) -> None:
        """Write one message, waiting while the other side is slow; StreamBroken."""

    @abstractmethod
    async def read(self) -> bytes | None:
        """Return the next message; None once the other side has ended the stream. Raises StreamBroken."""


class ClientStream(MessageStream):
    """The connecting side of a stream."""

    async def write_frame(self, frame: OutFrame, assignment_version: int) -> None:
        """Write a frame of a Send stream; see write. A stream in memory passes its groups as they are."""
        await self.write(
            encode_frame(
                frame.sequence,
                frame.runs,
                accepted_micros=frame.accepted_micros,
                assignment_version=assignment_version,
                closed=frame.closed,
                tell_at_once=frame.asks,
            )
        )

    @abstractmethod
    async def done_writing(self) -> None:
        """Tell the other side that nothing more comes; StreamBroken."""

    @abstractmethod
    async def end(self) -> TuplewireError:
        """End the stream and return why it is over: the refusal's own error, or UnreachableError."""


Dial = Callable[[str], AbstractAsyncContextManager[ClientStream]]
"""Opens a stream to a fixed worker; the argument is the method, "Send" or "Recv"."""


class Gathering:
    """Sets an event when something is to be told at once, or has waited. Belongs to the loop."""

    def __init__(self, event: asyncio.Event, loop: asyncio.AbstractEventLoop) -> None:
        self._event = event
        self._loop = loop
        self._untold = False
        self._timer: asyncio.TimerHandle | None = None

    def add(self, *, at_once: bool) -> None:
        """Note that there is one more thing to tell."""
        self._untold = True
        if at_once:
            self._event.set()
        elif self._timer is None:
            self._timer = self._loop.call_later(GATHER_SECONDS, self._time_passed)

    def told(self) -> None:
        """Note that everything is being told."""
        self._untold = False

    def _time_passed(self) -> None:
        self._timer = None
        if self._untold:
            self._event.set()
