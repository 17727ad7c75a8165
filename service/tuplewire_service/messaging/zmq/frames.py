"""What travels between a DEALER and a ROUTER: a header and a body, two parts of one ZeroMQ message.

The header is the kind (1 byte), then how many messages and bytes the other side may have sent in all, from
the beginning of the stream (8 bytes each, big-endian). Every frame says so, hence none of them is needed.

| kind | from | body |
|---|---|---|
| OPEN | the dialer, first | the method's name |
| DATA | both | one message of the stream |
| GRANT | both | empty |
| DONE | both, once | empty: nothing more comes from this side |
| REFUSED | the server, last | the code's name, a zero byte, the reason |

A stream is one connection: the ROUTER tells them apart by the routing id that it gave to each.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from typing import NamedTuple

from tuplewire.errors import MalformedError, RefusedError, refused

_HEADER = struct.Struct("!BQQ")


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
