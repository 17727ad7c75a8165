"""A message that is one frame is cut out of its bytes; any other goes to protobuf."""

from __future__ import annotations

import pytest

from tuplewire.errors import MalformedError
from tuplewire.values.group import MAX_FRAME_GROUPS
from tuplewire.wire import codec
from tuplewire.wire.codec import groups_of
from tuplewire.wire.opaque_pb2 import OpaqueFrame

_VARINT_BITS = 7


def field(body: bytes) -> bytes:
    """Return a frame's field: its tag, its size in seven bits a byte, and its bytes."""
    size, rest = b"", len(body)
    while rest >> _VARINT_BITS:
        size, rest = size + bytes([rest & 0x7F | 0x80]), rest >> _VARINT_BITS
    return codec._FRAME + size + bytes([rest]) + body


@pytest.mark.parametrize("size", [0, 1, 127, 128, 129, 16_383, 16_384, 3_000_000])
def test_one_frame_is_cut_out(size: int) -> None:
    """Of every length that takes one byte more to be told."""
    assert codec._frame_body(field(b"x" * size)) == b"x" * size


@pytest.mark.parametrize(
    "data", [b"", b"\x08\x01", field(b"x") + b"\x08\x01", field(b"x" * 200)[:-1], b"\x0a"]
)
def test_anything_else_is_left_to_protobuf(data: bytes) -> None:
    """Another field, a second one, a frame that is not whole, a size that is missing."""
    assert codec._frame_body(data) is None


def test_a_frame_has_so_many_groups() -> None:
    """The bound itself is read, and one group more is refused."""
    frame = OpaqueFrame()
    for _ in range(MAX_FRAME_GROUPS):
        frame.groups.add(task=1, lengths=bytes(4))
    assert len(groups_of(frame)) == MAX_FRAME_GROUPS
    frame.groups.add(task=1, lengths=bytes(4))
    with pytest.raises(MalformedError, match=f"a frame has {MAX_FRAME_GROUPS + 1} groups, and may have"):
        groups_of(frame)
