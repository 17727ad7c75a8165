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
from typing import NamedTuple

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
    """How much a side may have sent since the beginning of a stream, or has; only grows."""

    messages: int
    size_bytes: int

    def plus(self, messages: int, size_bytes: int) -> Allowance:
        """Return so much more."""
        return Allowance(self.messages + messages, self.size_bytes + size_bytes)

    def below(self, most: Allowance) -> bool:
        """Whether there is room for a message; the last one may go over the bytes."""
        return self.messages < most.messages and self.size_bytes < most.size_bytes


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


class ZmqInFlight:
    """The counts of one side of a stream."""

    def __init__(self, window: Allowance) -> None:
        """Begin a stream. window: what the other side may have sent that is not read."""
        self._window = window
        self._sent = self._allowed = self._arrived = self._read = self._told = NOTHING

    @property
    def open(self) -> bool:
        """Whether the other side has room for a message."""
        return self._sent.below(self._allowed)

    def on_allowance(self, allowance: Allowance) -> None:
        """Take in what the other side allows."""
        self._allowed = Allowance(*map(max, self._allowed, allowance))

    def on_sent(self, size_bytes: int) -> None:
        """Count a message that was written."""
        self._sent = self._sent.plus(1, size_bytes)

    def on_arrival(self, size_bytes: int) -> None:
        """Count a message of the other side; MalformedError when it was not allowed."""
        if not self._arrived.below(self._told):
            raise MalformedError(f"more was sent than the {self._told.messages} messages that were allowed")
        self._arrived = self._arrived.plus(1, size_bytes)

    def on_read(self, size_bytes: int) -> None:
        """Count a message that was handed on."""
        self._read = self._read.plus(1, size_bytes)

    @property
    def due(self) -> bool:
        """Whether there is so much more room than the other side knows that it should be told."""
        counts = zip(self._read, self._window, self._told, strict=True)
        return any(read + window - told >= window / _TOLD_PARTS for read, window, told in counts)

    def tell(self) -> Allowance:
        """Return what the other side may have sent by now, which counts as told."""
        self._told = self._read.plus(*self._window)
        return self._told
