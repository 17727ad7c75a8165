"""Flow control and frames of a ZeroMQ stream."""

from __future__ import annotations

import pytest

from tuplewire.errors import DrainingError, MalformedError
from tuplewire_service.messaging.zmq.zmq_stream import (
    ZERO,
    Allowance,
    Frame,
    FrameKind,
    ZmqFlowControl,
    decode,
    decode_refusal,
    encode,
    encode_refusal,
)

WINDOW = Allowance(1000, 4 * 2**20)


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
def test_messages_and_bytes_are_bounds(
    allowances: list[Allowance], sizes: list[int], *, still_open: bool
) -> None:
    """The last message may exceed the bytes; an older allowance changes nothing, and the first one opens."""
    in_flight = ZmqFlowControl(WINDOW)
    for each in allowances:
        in_flight.on_allowance(each)
    for size in sizes:
        assert in_flight.can_write
        in_flight.on_sent(size)
    assert in_flight.can_write is still_open


def test_reading_makes_room() -> None:
    """An allowance is due after a quarter of the window is read, and contains the new total."""
    in_flight = ZmqFlowControl(Allowance(8, 1000))
    assert in_flight.next_allowance() == Allowance(8, 1000)
    for _ in range(2):
        assert not in_flight.is_grant_due
        in_flight.on_arrival(10)
        in_flight.on_read(10)
    assert in_flight.is_grant_due
    assert in_flight.next_allowance() == Allowance(10, 1020)
    assert not in_flight.is_grant_due


@pytest.mark.parametrize("sizes", [[1, 1, 1], [1000, 1]])
def test_more_than_was_allowed_is_an_error(sizes: list[int]) -> None:
    """Exceeding the allowance in messages or bytes is an error."""
    in_flight = ZmqFlowControl(Allowance(2, 1000))
    in_flight.next_allowance()
    for size in sizes[:-1]:
        in_flight.on_arrival(size)
    with pytest.raises(MalformedError, match="allowed"):
        in_flight.on_arrival(sizes[-1])


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
    error = decode_refusal(encode_refusal("DRAINING", "later"))
    assert isinstance(error, DrainingError)
    assert str(error) == "later"
    assert decode_refusal(b"\xff\xfe").code == "UNSPECIFIED"
