"""How much of a stream may be on its way: pure counts, no I/O.

A ROUTER serves all its peers from one socket. When one of them does not read, it either drops what it has
for that one, or blocks for all. So it must never come to that: a side writes only what the other has room
for, and the room is told in absolute counts with every frame.
"""

from __future__ import annotations

from dataclasses import dataclass

from tuplewire.config import MIB
from tuplewire.errors import MalformedError
from tuplewire_service.messaging.zmq.frames import NOTHING, Allowance

_TOLD_PARTS = 4
"""News of room is worth a frame once it is this part of the window."""


@dataclass(frozen=True, slots=True)
class ZmqWindow:
    """What one side may have sent that the other has not read; one message may go over the bytes."""

    messages: int = 1000
    size_bytes: int = 4 * MIB


class ZmqInFlight:
    """The counts of one side of a stream."""

    def __init__(self, window: ZmqWindow) -> None:
        self._window = window
        self._sent_messages = self._sent_bytes = 0
        self._allowed = NOTHING
        self._arrived_messages = self._arrived_bytes = 0
        self._read_messages = self._read_bytes = 0
        self._told = NOTHING

    @property
    def open(self) -> bool:
        """Whether the other side has room for a message."""
        allowed = self._allowed
        return self._sent_messages < allowed.messages and self._sent_bytes < allowed.size_bytes

    def on_allowance(self, allowance: Allowance) -> None:
        """Take in what the other side allows."""
        self._allowed = Allowance(
            max(self._allowed.messages, allowance.messages),
            max(self._allowed.size_bytes, allowance.size_bytes),
        )

    def on_sent(self, size_bytes: int) -> None:
        """Count a message that was written."""
        self._sent_messages += 1
        self._sent_bytes += size_bytes

    def on_arrival(self, size_bytes: int) -> None:
        """Count a message of the other side; MalformedError when it was not allowed."""
        if self._arrived_messages >= self._told.messages or self._arrived_bytes >= self._told.size_bytes:
            raise MalformedError(f"more was sent than the {self._told.messages} messages that were allowed")
        self._arrived_messages += 1
        self._arrived_bytes += size_bytes

    def on_read(self, size_bytes: int) -> None:
        """Count a message that was handed on."""
        self._read_messages += 1
        self._read_bytes += size_bytes

    @property
    def due(self) -> bool:
        """Whether there is so much more room than the other side knows that it should be told."""
        window, told = self._window, self._told
        return (
            self._read_messages + window.messages - told.messages >= window.messages / _TOLD_PARTS
            or self._read_bytes + window.size_bytes - told.size_bytes >= window.size_bytes / _TOLD_PARTS
        )

    def tell(self) -> Allowance:
        """Return what the other side may have sent by now, which counts as told."""
        self._told = Allowance(
            self._read_messages + self._window.messages, self._read_bytes + self._window.size_bytes
        )
        return self._told
