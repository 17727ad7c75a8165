"""Bytes on the wire that are not gRPC, or that stop in the middle of a gRPC call."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Self

from helpers import http2
from helpers.hostile import SEND, frame, hello
from helpers.http2 import OPENING, PREFACE, call_headers, connected, grpc_message, http2_frame

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_MOST_OPEN = 20
_MOST_READ = 64 << 10
_MOST_STREAMS = 10
"""Streams of one connection. With too many, gRPC resets some streams, also of other connections."""


def _call(stream: int, *messages: bytes) -> bytes:
    return call_headers(stream) + b"".join(
        http2_frame(http2.DATA, 0, stream, message) for message in messages
    )


def _other_protocol(rng: random.Random) -> bytes:
    return rng.choice(
        [
            b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
            b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(500),
            b"GET /" + b"a" * 100_000,
            PREFACE[: rng.randrange(len(PREFACE))],
        ]
    )


def _random_frames(rng: random.Random) -> bytes:
    return OPENING + b"".join(
        http2_frame(
            rng.randrange(12),
            rng.randrange(256),
            rng.choice([0, 1, 2, 3, 2**31 - 1]),
            rng.randbytes(rng.randrange(60)),
        )
        for _ in range(rng.randrange(1, 20))
    )


def _bad_messages(rng: random.Random) -> bytes:
    """Return a call with gRPC messages that have a wrong length, claim a compression, or are cut off."""
    bad = grpc_message(
        rng.randbytes(rng.randrange(100)),
        compressed=rng.choice([0, 1, 255]),
        length=rng.choice([None, 0, 5, 2**31, 2**32 - 1]),
    )
    return OPENING + _call(1, grpc_message(hello(sender_id="wire")), bad)


def _frame_flood(rng: random.Random) -> bytes:
    """Return many small frames of one kind."""
    one: Callable[[int], bytes] = rng.choice(
        [
            lambda n: http2_frame(http2.PING, 0, 0, n.to_bytes(8, "big")),
            lambda n: http2_frame(http2.SETTINGS, 0, 0, struct.pack(">HI", n % 6 + 1, n)),
            lambda _: http2_frame(http2.WINDOW_UPDATE, 0, 0, struct.pack(">I", 2**31 - 1)),
            lambda n: http2_frame(http2.PRIORITY, 0, 2 * n + 1, struct.pack(">IB", 2 * n + 3, 255)),
            lambda n: http2_frame(http2.GOAWAY, 0, 0, struct.pack(">II", n, 11)),
            lambda n: (
                http2_frame(http2.CONTINUATION, 0, 1, b"\0\x01a\x01b") if n else call_headers(1, flags=0)
            ),
        ]
    )
    return OPENING + b"".join(map(one, range(rng.randrange(100, 2000))))


def _stream_flood(rng: random.Random) -> bytes:
    """Return many concurrent calls: cancelled, or with one message each."""
    one: Callable[[int], bytes] = rng.choice(
        [
            lambda n: call_headers(n) + http2_frame(http2.RST_STREAM, 0, n, struct.pack(">I", 8)),
            lambda n: _call(n, grpc_message(b"")),
        ]
    )
    return OPENING + b"".join(one(2 * n + 1) for n in range(rng.randrange(_MOST_STREAMS)))


def _strange_headers(rng: random.Random) -> bytes:
    """Return calls of unknown methods, in UTF-8: other names end servers of grpcio 1.84 and 1.85."""
    ascii_path = bytes(rng.choices(range(128), k=rng.randrange(1, 100)))
    paths = [b"", b"/", b"/tuplewire.v1.Messaging/", ascii_path, b"x" * 100]
    return OPENING + b"".join(call_headers(2 * n + 1, rng.choice(paths)) for n in range(rng.randrange(1, 10)))


def _good_call(rng: random.Random) -> bytes:
    sender = hello(sender_id=f"wire-{rng.randrange(20)}")
    frames = (grpc_message(frame(number)) for number in range(1, rng.randrange(2, 6)))
    return (
        OPENING
        + http2_frame(http2.SETTINGS, http2.ACK, 0)
        + _call(1, grpc_message(sender), *frames)
        + http2_frame(http2.DATA, http2.END_STREAM, 1)
    )


def _cut_off(rng: random.Random) -> bytes:
    written = _good_call(rng)
    return written[: rng.randrange(len(written))]


def _flipped(rng: random.Random) -> bytes:
    """Return a call with changed bytes; the method stays unchanged, see _strange_headers."""
    written = bytearray(_good_call(rng))
    path = written.index(SEND.encode())
    method = range(path - 1, path + len(SEND))
    for _ in range(rng.randrange(1, 6)):
        if (place := rng.randrange(len(written))) not in method:
            written[place] = rng.randrange(256)
    return bytes(written)


_KINDS = (
    lambda rng: rng.randbytes(rng.randrange(1, 2000)),
    _other_protocol, _random_frames, _bad_messages, _frame_flood, _stream_flood, _strange_headers,
    _good_call, _cut_off, _flipped,
)  # fmt: skip


class Wire:
    """Connections for attacks with bytes; some stay open for a while without sending more."""

    def __init__(self, addresses: list[str]) -> None:
        self._addresses = addresses
        self._open: deque[socket.socket] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        while self._open:
            self._open.popleft().close()

    def attack(self, rng: random.Random) -> str:
        """Connect, write, and close or keep the connection; return the kind. OSError without a server."""
        write = rng.choice(_KINDS)
        connection = connected(rng.choice(self._addresses))
        with contextlib.suppress(OSError):  # the worker may close the connection at any time
            connection.sendall(write(rng))
            match rng.randrange(4):
                case 0:
                    connection.shutdown(socket.SHUT_WR)
                    connection.recv(_MOST_READ)
                case 1:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                case 2:
                    self._open.append(connection)
                    if len(self._open) > _MOST_OPEN:
                        self._open.popleft().close()
                    return write.__name__
                case _:
                    pass
        connection.close()
        return write.__name__
