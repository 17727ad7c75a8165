"""Flow control and frames of a ZeroMQ stream."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tuplewire.errors import DrainingError, MalformedError
from tuplewire_service.messaging.zmq.zmq_stream import (
    ZERO,
    Allowance,
    Frame,
    FrameKind,
    ZmqStream,
    decode,
    decode_refusal,
    encode,
    encode_refusal,
)

WINDOW = Allowance(1000, 4 * 2**20)
_SECONDS = 5.0


@pytest.mark.parametrize(
    ("allowances", "sizes", "still_open"),
    [
        ([], [], False),
        ([Allowance(1, 1)], [], True),
        ([Allowance(2, 100)], [10], True),
        ([Allowance(2, 100)], [10, 10], False),
        ([Allowance(9, 100)], [99], True),
        ([Allowance(9, 100)], [100], False),
        ([Allowance(9, 100)], [99, 5000], False),
        ([Allowance(5, 50), Allowance(3, 60)], [1, 1, 1, 1], True),
    ],
)
async def test_messages_and_bytes_are_bounds(
    allowances: list[Allowance], sizes: list[int], *, still_open: bool
) -> None:
    """The last message may exceed the bytes; an older allowance changes nothing, and the first one opens."""
    sent: list[Sequence[bytes]] = []
    stream = ZmqStream(sent.append, WINDOW)
    for each in allowances:
        stream.on_frame(Frame(FrameKind.GRANT, each, b""))
    for size in sizes:
        await asyncio.wait_for(stream.write(bytes(size)), _SECONDS)
    last = asyncio.create_task(stream.write(b"x"))
    await asyncio.sleep(0)
    assert last.done() is still_open
    last.cancel()
    await asyncio.gather(last, return_exceptions=True)
    assert len(sent) == len(sizes) + still_open


async def test_reading_makes_room() -> None:
    """An allowance is due after a quarter of the window is read, and contains the new total."""
    sent: list[Sequence[bytes]] = []
    stream = ZmqStream(sent.append, Allowance(8, 1000))
    stream.send_grant()
    assert decode(sent.pop()) == Frame(FrameKind.GRANT, Allowance(8, 1000), b"")
    for _ in range(2):
        assert sent == []
        stream.on_frame(Frame(FrameKind.DATA, ZERO, bytes(10)))
        await stream.read()
    assert decode(sent.pop()) == Frame(FrameKind.GRANT, Allowance(10, 1020), b"")
    assert sent == []


@pytest.mark.parametrize("sizes", [[1, 1, 1], [1000, 1]])
async def test_more_than_was_allowed_is_an_error(sizes: list[int]) -> None:
    """Exceeding the allowance in messages or bytes is an error."""
    stream = ZmqStream(lambda _: None, Allowance(2, 1000))
    stream.send_grant()
    for size in sizes[:-1]:
        stream.on_frame(Frame(FrameKind.DATA, ZERO, bytes(size)))
    with pytest.raises(MalformedError, match="allowed"):
        stream.on_frame(Frame(FrameKind.DATA, ZERO, bytes(sizes[-1])))


def test_a_frame_comes_back_as_it_was() -> None:
    """Frames of every kind survive a round trip with the largest counts."""
    for kind in FrameKind:
        frame = Frame(kind, Allowance(2**64 - 1, 2**64 - 1), b"body")
        assert decode(encode(*frame)) == frame


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [b""],
        [b"x" * 17],
        [b"x" * 16, b""],
        [*encode(FrameKind.DATA, ZERO), b""],
        [b"\x09" + bytes(16), b""],
    ],
)
def test_what_is_no_frame_is_refused(parts: list[bytes]) -> None:
    """Too few or too many parts, a header of another size, and an unknown kind are refused."""
    with pytest.raises(MalformedError):
        decode(parts)


def test_a_refusal_has_its_own_error() -> None:
    """Code and reason reach the peer; invalid bytes decode to UNSPECIFIED."""
    error = decode_refusal(encode_refusal("DRAINING", "later \udcff"))
    assert isinstance(error, DrainingError)
    assert str(error) == r"later \udcff"
    assert decode_refusal(b"\xff\xfe").code == "UNSPECIFIED"
