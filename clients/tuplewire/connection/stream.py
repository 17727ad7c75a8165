"""The streams below a session: requests to a worker, and its answers, as bytes.

A transport provides streams. When a stream breaks, the session opens another one and resumes. So a stream may
break at any time, but the messages that it delivers must be complete and in order. Used by SendingEnd,
ConsumingEnd and transports. Owns buffers. Call only from the event loop. Design: docs/design/sessions.md.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from tuplewire.errors import TuplewireError
from tuplewire.session.flow import OutFrame
from tuplewire.wire.codec import encode_frame

BATCH_SECONDS = 0.02
"""The delay of reports that the peer has not requested immediately."""
PROBE_SECONDS = 1.0
"""A side that waits for an update sends a probe after this time without one."""


class StreamBroken(Exception):  # noqa: N818  an event, not an error: end() returns the reason
    """The stream is closed: it can be neither written nor read."""


class MessageStream(ABC):
    """One side of a stream. Call only from the event loop, with one reader and one writer at a time."""

    @abstractmethod
    async def write(self, data: bytes) -> None:
        """Write one message; wait while the peer is slow. Raises StreamBroken."""

    @abstractmethod
    async def read(self) -> bytes | None:
        """Return the next message; None once the peer has closed its side. Raises StreamBroken."""


class BufferedStream(MessageStream):
    """A stream with a buffer. Messages that arrived before it broke can still be read."""

    def __init__(self) -> None:
        self._arrived: deque[Any] = deque()
        self._peer_finished = False
        self._changed = asyncio.Event()
        self._space_event = asyncio.Event()
        self.failure: TuplewireError | None = None
        """The reason why the stream ended."""

    async def _await_arrival(self) -> bool:
        """Wait for a message; return False after a clean end. Raises StreamBroken."""
        while not self._arrived:
            if self._peer_finished:
                return False
            if self.failure is not None:
                raise StreamBroken from self.failure
            self._changed.clear()
            await self._changed.wait()
        return True

    def disconnect(self, reason: TuplewireError) -> None:
        """End the stream; only the first reason counts."""
        # A lost connection follows most other ends, and must not replace their reason.
        self.failure = self.failure or reason
        self._changed.set()
        self._space_event.set()


class ClientStream(MessageStream):
    """The connecting side of a stream."""

    def write_frame(self, frame: OutFrame) -> Awaitable[None]:
        """Write a frame of a Send stream; see write. A stream in memory passes its groups unencoded."""
        return self.write(
            encode_frame(
                frame.sequence,
                frame.runs,
                accepted_micros=frame.accepted_micros,
                assignment_version=frame.assignment_version,
                closed_flows=frame.closed_flows,
                ack_immediately=frame.ack_immediately,
            )
        )

    @abstractmethod
    async def done_writing(self) -> None:
        """Signal the end of this side's messages. Raises StreamBroken."""

    @abstractmethod
    async def end(self) -> TuplewireError:
        """End the stream and return the reason: the error of a refusal, or UnreachableError."""


StreamOpener = Callable[[str], AbstractAsyncContextManager[ClientStream]]
"""Opens a stream to a fixed worker; the argument is the method, "Send" or "Recv"."""


class ProbeTimer:
    """Calls a function after PROBE_SECONDS without an update. The function may send a probe.

    Acknowledgements and credit are absolute, so the next one replaces a lost one. A probe ensures that there
    is a next one. Source: TCP's window probe. Call only from the event loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._clock = loop.time
        self.reset()

    def reset(self) -> None:
        """Restart the time, because an update was received."""
        self._next_probe = self._clock() + PROBE_SECONDS

    async def run(self, probe: Callable[[], None]) -> None:
        """Call `probe` each time that PROBE_SECONDS have passed without an update."""
        while True:
            if (remaining := self._next_probe - self._clock()) > 0:
                await asyncio.sleep(remaining)
            else:
                self.reset()
                probe()


class BatchedEvent:
    """Sets an event for a report, immediately or after BATCH_SECONDS. Call only from the event loop."""

    def __init__(self, event: asyncio.Event, loop: asyncio.AbstractEventLoop) -> None:
        self._event = event
        self._loop = loop
        self._has_unsent = False
        self._timer: asyncio.TimerHandle | None = None

    def add(self, *, immediately: bool) -> None:
        """Schedule a report."""
        self._has_unsent = True
        if immediately:
            self._event.set()
        elif self._timer is None:
            self._timer = self._loop.call_later(BATCH_SECONDS, self._on_timer)

    def mark_sent(self) -> None:
        """Record that everything added so far is being reported."""
        self._has_unsent = False

    def _on_timer(self) -> None:
        self._timer = None
        if self._has_unsent:  # otherwise an earlier report has included it
            self._event.set()
