"""The frames between a DEALER and a ROUTER, and their flow control. Pure state, without I/O.

Used by zmq_stream.py, zmq_transport.py and zmq_settings.py. Owns the wire format and the counts of a stream.
Not thread-safe. Design: docs/design/sessions.md (ZeroMQ between workers).

Each ZeroMQ message has two parts, a header and a body. The header is the kind (1 byte), then the total
numbers of messages and bytes that the other side may send since the start of the stream (8 bytes each,
big-endian). Every frame repeats these totals, so no single frame is essential.

| kind | from | body |
|---|---|---|
| OPEN | the connecting side, first | the method's name |
| DATA | both | one message of the stream |
| GRANT | both | empty |
| DONE | both, once | empty: this side sends nothing more |
| REFUSED | the server, last | the code's name, a zero byte, the reason |

A stream is one connection; the ROUTER distinguishes connections by the routing ids that it assigned. It
serves all peers from one socket. If a peer does not read, the ROUTER either drops its messages or blocks for
all peers. To prevent both, a side writes only within the other side's allowance.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from typing import NamedTuple

from tuplewire.errors import MalformedError, RefusedError, refused

_HEADER = struct.Struct("!BQQ")
_GRANT_PARTS = 4
"""An allowance update is sent once it is at least this fraction (1/4) of the window."""


class FrameKind(enum.IntEnum):
    """The kind of a frame."""

    OPEN = 1
    DATA = 2
    GRANT = 3
    DONE = 4
    REFUSED = 5


class Allowance(NamedTuple):
    """A total of messages and bytes since the start of a stream. It only grows."""

    messages: int
    size_bytes: int

    def plus(self, messages: int, size_bytes: int) -> Allowance:
        """Return the sum."""
        return Allowance(self.messages + messages, self.size_bytes + size_bytes)

    def below(self, most: Allowance) -> bool:
        """Return True if another message may be sent; the last one may exceed the bytes."""
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
    """Read the parts of a frame. Raises MalformedError if they are not a valid frame."""
    # A hostile peer may send any number of parts; the error names the first four.
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
    """Return the error of a REFUSED frame."""
    code, _, detail = body.decode(errors="replace").partition("\0")
    return refused(code, detail)


class ZmqInFlight:
    """The counts of one side of a stream."""

    def __init__(self, window: Allowance) -> None:
        """Start a stream. `window` is the amount of unread messages that the other side may send."""
        self._window = window
        self._sent = self._allowed = self._arrived = self._read = self._granted = NOTHING

    @property
    def open(self) -> bool:
        """True if the other side accepts another message."""
        return self._sent.below(self._allowed)

    def on_allowance(self, allowance: Allowance) -> None:
        """Apply the allowance of the other side."""
        # An allowance never falls, even if the peer sends a lower one.
        self._allowed = Allowance(*map(max, self._allowed, allowance))

    def on_sent(self, size_bytes: int) -> None:
        """Count a message that was written."""
        self._sent = self._sent.plus(1, size_bytes)

    def on_arrival(self, size_bytes: int) -> None:
        """Count a message of the other side. Raises MalformedError if it exceeds the allowance."""
        # The peer knows only the allowance that was sent last, which may be below the current one.
        if not self._arrived.below(self._granted):
            raise MalformedError(
                f"more was sent than the {self._granted.messages} messages that were allowed"
            )
        self._arrived = self._arrived.plus(1, size_bytes)

    def on_read(self, size_bytes: int) -> None:
        """Count a message that was read."""
        self._read = self._read.plus(1, size_bytes)

    @property
    def due(self) -> bool:
        """True if the allowance has grown enough to send it to the other side."""
        counts = zip(self._read, self._window, self._granted, strict=True)
        return any(read + window - told >= window / _GRANT_PARTS for read, window, told in counts)

    def next_allowance(self) -> Allowance:
        """Return the current allowance of the other side, and record it as sent."""
        self._granted = self._read.plus(*self._window)
        return self._granted
