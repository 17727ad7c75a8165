"""Frames outside a session, and the maximum number of groups in a frame."""

from __future__ import annotations

import pytest

from tuplewire.errors import MalformedError
from tuplewire.values.group import MAX_FRAME_GROUPS, TaskGroup
from tuplewire.wire.codec import groups_of, plain_frame
from tuplewire.wire.opaque_pb2 import OpaqueFrame


@pytest.mark.parametrize("size", [0, 1, 100, 127, 128, 16_383, 3_000_000])
def test_a_frame_alone(size: int) -> None:
    """A frame is decoded for payload sizes around each change in the length encoding."""
    (group,) = groups_of(OpaqueFrame.FromString(plain_frame([TaskGroup.of(1, [b"x" * size])])))
    assert group.payloads() == [b"x" * size]


def test_a_frame_has_so_many_groups() -> None:
    """A frame with the maximum number of groups is decoded; one more group is rejected."""
    frame = OpaqueFrame()
    for _ in range(MAX_FRAME_GROUPS):
        frame.groups.add(task=1, lengths=bytes(4))
    assert len(groups_of(frame)) == MAX_FRAME_GROUPS
    frame.groups.add(task=1, lengths=bytes(4))
    with pytest.raises(MalformedError, match=f"a frame has {MAX_FRAME_GROUPS + 1} groups, and may have"):
        groups_of(frame)
