"""What carries a session: a stream of requests to a worker and of its answers, as bytes.

A transport gives one, and the session above it does the rest: when a stream breaks, another one is opened and
the session resumes. So a stream need not be reliable, but what it does carry must be whole and in order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from tuplewire.errors import TuplewireError


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

    @abstractmethod
    async def done_writing(self) -> None:
        """Tell the other side that nothing more comes; StreamBroken."""

    @abstractmethod
    async def end(self) -> TuplewireError:
        """End the stream and return why it is over: the refusal's own error, or UnreachableError."""


Dial = Callable[[str], AbstractAsyncContextManager[ClientStream]]
"""Opens a stream to a fixed worker; the argument is the method, "Send" or "Recv"."""
