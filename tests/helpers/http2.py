"""HTTP/2 and gRPC's framing by hand, for input that a gRPC library would never write."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

from helpers.hostile import SEND

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, _, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
"""Frame types."""
END_STREAM, ACK, END_HEADERS = 1, 1, 4
"""Flags."""
GRPC_PREFIX_BYTES = 5
"""The length of each message's prefix: a flag for compression, and the length of the message."""


def http2_frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return one frame."""
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


OPENING = PREFACE + http2_frame(SETTINGS, 0, 0)
"""The first bytes that a client sends."""


def window_of(size: int) -> bytes:
    """Return the setting of the initial window of each stream, in bytes."""
    return struct.pack(">HI", 4, size)


def call_headers(stream: int, path: bytes = SEND.encode(), flags: int = END_HEADERS) -> bytes:
    """Return the headers of a gRPC call; each is a literal that does not need a table."""
    block = b""
    for name, value in (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path),
        (b":authority", b"test"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    ):
        block += b"\0" + bytes((len(name),)) + name + bytes((len(value),)) + value
    return http2_frame(HEADERS, flags, stream, block)


def grpc_message(message: bytes, *, compressed: int = 0, length: int | None = None) -> bytes:
    """Return a message in gRPC's framing. length: the declared length, if it differs from the real one."""
    return struct.pack(">BI", compressed, len(message) if length is None else length) + message


def connected(address: str, timeout: float = 5.0) -> socket.socket:
    """Return a connection to host:port or unix:///path. Raises OSError if the address does not accept it."""
    if address.startswith("unix://"):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(timeout)
        connection.connect(address.removeprefix("unix://"))
        return connection
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=timeout)


def frames_of(connection: socket.socket, stream: int) -> Iterator[tuple[int, int, bytes]]:
    """Yield the type, the flags and the payload of each frame of one stream, until the connection ends."""
    with connection.makefile("rb") as read:
        while len(head := read.read(9)) == 9:
            payload = read.read(int.from_bytes(head[:3], "big"))
            if int.from_bytes(head[5:], "big") == stream:
                yield head[3], head[4], payload
