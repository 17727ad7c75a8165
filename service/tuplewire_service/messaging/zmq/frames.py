"""What travels between a DEALER and a ROUTER, and how much of it may be on its way: pure, without I/O.

Each ZeroMQ message has a header and a body, as two parts. The header is the kind (1 byte), then how many
messages and bytes the other side may have sent in all, from the beginning of the stream (8 bytes each,
big-endian). Every frame says so, hence none of them is needed.

| kind | from | body |
|---|---|---|
| OPEN | the dialer, first | the method's name |
| DATA | both | one message of the stream |
| GRANT | both | empty |
| DONE | both, once | empty: nothing more comes from this side |
| REFUSED | the server, last | the code's name, a zero byte, the reason |

A stream is one connection: the ROUTER tells them apart by the routing id that it gave to each. It serves all
its peers from one socket. When one of them does not read, it either drops what it has for that one, or blocks
for all. So it must never come to that: a side writes only what the other has room for.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tuplewire.config import MIB
from tuplewire.errors import MalformedError, RefusedError, refused

_HEADER = struct.Struct("!BQQ")
_TOLD_PARTS = 4
"""News of room is worth a frame once it is this part of the window."""


class FrameKind(enum.IntEnum):
    """What a frame is."""

    OPEN = 1
    DATA = 2
    GRANT = 3
    DONE = 4
    REFUSED = 5


class Allowance(NamedTuple):
    """How much a side may have sent since the beginning of a stream; only grows."""

    messages: int
    size_bytes: int


NOTHING = Allowance(0, 0)


class Frame(NamedTuple):
    """One ZeroMQ message of a stream."""

    kind: FrameKind
    allowance: Allowance
    body: bytes


def encode(kind: FrameKind, allowance: Allowance, body: bytes = b"") -> list[bytes]:
    """Return the parts of a frame."""
    return [_HEADER.pack(kind, *allowance), body]


def decode(parts: Sequence[bytes]) -> Frame:
    """Read the parts of a frame; MalformedError when they are none."""
    if len(parts) != 2 or len(parts[0]) != _HEADER.size:
        sizes = [len(part) for part in parts[:4]]
        raise MalformedError(f"{len(parts)} parts (of {sizes} ... bytes) are no frame of this transport")
    kind, messages, size_bytes = _HEADER.unpack(parts[0])
    try:
        return Frame(FrameKind(kind), Allowance(messages, size_bytes), parts[1])
    except ValueError:
        raise MalformedError(f"a frame of kind {kind} is unknown to this release") from None


def encode_refusal(code: str, detail: str) -> bytes:
    """Return the body of a REFUSED frame."""
    return f"{code}\0{detail}".encode()


def decode_refusal(body: bytes) -> RefusedError:
    """Return the error that a REFUSED frame stands for."""
    code, _, detail = body.decode(errors="replace").partition("\0")
    return refused(code, detail)


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
