"""Splitting of groups at the end of the credit or of a frame."""

from __future__ import annotations

import pytest

from tuplewire.session.pieces import cut, frame_pieces, starting_within, wire_bytes
from tuplewire.values.group import TaskGroup
from tuplewire.wire.codec import encode_frame


def group_of(*sizes: int, headed: bool = False) -> TaskGroup:
    """Return messages of these sizes, each filled with its index; headed: half of the bytes are headers."""
    values = [bytes([entry_sequence % 256]) * size for entry_sequence, size in enumerate(sizes)]
    if not headed:
        return TaskGroup.of(2**31 - 1, values)
    halves = [size // 2 for size in sizes]
    payloads = [value[:half] for value, half in zip(values, halves, strict=True)]
    headers = [value[half:] for value, half in zip(values, halves, strict=True)]
    return TaskGroup.joined(2**31 - 1, None, payloads, headers)


HEADED = pytest.mark.parametrize("headed", [False, True])


@pytest.mark.parametrize(
    ("size_bytes", "count"), [(0, 0), (1, 2), (2, 2), (3, 3), (4, 3), (5, 3), (6, 5), (100, 5)]
)
@HEADED
def test_messages_that_start_within(size_bytes: int, count: int, *, headed: bool) -> None:
    """A message, even an empty one, counts if it starts within the size."""
    assert starting_within(group_of(0, 2, 3, 0, 0, headed=headed), size_bytes) == count


@pytest.mark.parametrize("count", [1, 2, 5, 9])
@HEADED
def test_a_cut_loses_nothing(count: int, *, headed: bool) -> None:
    """The pieces add up to the group; the first has the requested count, and no piece is empty."""
    group = group_of(3, 0, 1, 4, 1, 5, 9, 2, 6, 5, headed=headed).as_redelivered()
    pieces = cut(group, count)
    assert len(pieces[0]) == count
    assert all(pieces)
    assert [each for piece in pieces for each in piece.payloads()] == group.payloads()
    entries = [each for piece in pieces for each in piece.encoded_headers() or [b""] * len(piece)]
    assert entries == (group.encoded_headers() or [b""] * len(group))
    assert all(piece.redelivered and piece.task == group.task for piece in pieces)


def test_pieces_double() -> None:
    """Later pieces double in size, so that this cut and the next one are cheap."""
    assert [len(piece) for piece in cut(group_of(*[1] * 100), 3)] == [3, 3, 6, 12, 24, 48, 4]


@HEADED
def test_pieces_for_frames(*, headed: bool) -> None:
    """The messages and the lengths of a piece are within the limit, except for a single message."""
    sizes = [0] * 50 + [7] * 20 + [300] + [0, 90, 20, 90] + [0] * 70
    pieces = frame_pieces(group_of(*sizes, headed=headed), 100)
    assert [size for piece in pieces for size in piece.message_sizes()] == sizes
    for piece in pieces:
        assert piece.size_bytes <= 100 or len(piece) == 1
        assert len(piece.lengths) + len(piece.header_lengths) <= 100


@pytest.mark.parametrize("sizes", [[0], [1] * 40, [100_000] * 30])
@HEADED
def test_wire_bytes_is_an_upper_bound(sizes: list[int], *, headed: bool) -> None:
    """The counted size of a group is at least its size in a frame, even with the largest ids."""
    group = group_of(*sizes, headed=headed)
    group.source = 2**31 - 1
    group = group.as_redelivered()
    empty = encode_frame(1, [])
    assert len(encode_frame(1, [[group]], [2**64 - 1])) - len(empty) <= wire_bytes(group)
