"""Groups: copies keep the other fields, pieces end with the credit or a frame, and frames are limited."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import pytest

from tuplewire.errors import MalformedError
from tuplewire.session.pieces import count_within, split_head, wire_bytes
from tuplewire.values.batch import TaskMessageBatch, as_groups
from tuplewire.values.dead_letters import dead_letter, with_rejections
from tuplewire.values.group import MAX_FRAME_GROUPS, TaskGroup
from tuplewire.values.headers import encode_headers
from tuplewire.wire.codec import decode, encode_frame, groups_of
from tuplewire.wire.messaging_pb2 import SendRequest
from tuplewire.wire.opaque_pb2 import OpaqueFrame

HEADER = encode_headers(b"k", ())
FULL = TaskGroup(
    3,
    None,
    (1).to_bytes(4, "little"),
    b"p",
    redelivered=True,
    path=7,
    entry_sequence=9,
    accepted_micros=11,
    retained_upstream=True,
    header_lengths=len(HEADER).to_bytes(4, "little"),
    header_data=HEADER,
)
"""A group with non-default values in all fields."""

WORKER_FIELDS = {"path", "flow_id", "entry_sequence", "retained_upstream"}
HEADERS = {"header_lengths", "header_data", "size_bytes"}


@pytest.mark.parametrize(
    ("copy", "changed"),
    [
        (lambda group: group.as_redelivered(), set()),
        (lambda group: group.without_routing(), WORKER_FIELDS),
        (lambda group: group.numbered(20, 30), {"entry_sequence", "retained_upstream"}),
        (lambda group: group.with_default_time(30), set()),
        (lambda group: group.as_forwarded(2), {"path", "flow_id"}),
        (lambda group: group.as_forwarded(2).as_dequeued(0), {"path", "flow_id"}),
        (lambda group: group.slice(0, 1), set()),
        (lambda group: with_rejections(group, 1), HEADERS),
        (lambda group: dead_letter(group, 99, 1, "bad", 0), {"task", "flow_id", *HEADERS}),
        (lambda group: as_groups(TaskMessageBatch.from_groups([group]))[0], WORKER_FIELDS),
        (
            lambda group: as_groups(TaskMessageBatch.from_groups([group]), source=5)[0],
            {"source", *WORKER_FIELDS},
        ),
    ],
)
def test_a_copy_keeps_every_other_field(copy: Callable[[TaskGroup], TaskGroup], changed: set[str]) -> None:
    """Each copy changes its own fields and no others."""
    copied = copy(FULL)
    names = {field.name for field in fields(TaskGroup)}
    assert {name for name in names if getattr(copied, name) != getattr(FULL, name)} == changed


def test_what_leaves_a_queue_has_its_route() -> None:
    """Leaving a queue resets the hops; new messages get their entry worker, and their time only once."""
    forwarded = FULL.as_forwarded(2)
    assert forwarded.unqueued_hops
    left = forwarded.as_dequeued(0)
    assert (left.unqueued_hops, left.flow_id) == (0, forwarded.flow_id)
    group = TaskGroup.of(3, [b"p"])
    assert group.as_dequeued(0) is group
    assert group.as_dequeued(9).path == 9
    assert group.numbered(1, 30).numbered(2, 40).accepted_micros == 30


def test_every_field_travels() -> None:
    """Every field is preserved between workers."""
    frame = decode(SendRequest, encode_frame(1, [[FULL]], accepted_micros=[FULL.accepted_micros]))
    assert isinstance(frame, OpaqueFrame)
    [arrived] = groups_of(frame)
    for name in (field.name for field in fields(TaskGroup)):
        assert getattr(arrived, name) == getattr(FULL, name), name


def group_of(*sizes: int, headed: bool = False) -> TaskGroup:
    """Return messages of these sizes, each filled with its index; headed: half of the bytes are headers."""
    values = [bytes([entry_sequence % 256]) * size for entry_sequence, size in enumerate(sizes)]
    if not headed:
        return TaskGroup.of(2**31 - 1, values)
    halves = [size // 2 for size in sizes]
    payloads = [value[:half] for value, half in zip(values, halves, strict=True)]
    headers = [value[half:] for value, half in zip(values, halves, strict=True)]
    return TaskGroup.from_checked(2**31 - 1, None, payloads, headers)


HEADED = pytest.mark.parametrize("headed", [False, True])


@pytest.mark.parametrize(
    ("size_bytes", "count"), [(0, 0), (1, 2), (2, 2), (3, 3), (4, 3), (5, 3), (6, 5), (100, 5)]
)
@HEADED
def test_messages_that_start_within(size_bytes: int, count: int, *, headed: bool) -> None:
    """A message, even an empty one, counts if it starts within the size."""
    assert count_within(group_of(0, 2, 3, 0, 0, headed=headed), size_bytes) == count


@pytest.mark.parametrize("count", [1, 2, 5, 9])
@HEADED
def test_a_cut_loses_nothing(count: int, *, headed: bool) -> None:
    """The pieces add up to the group; the first has the requested count, and no piece is empty."""
    group = group_of(3, 0, 1, 4, 1, 5, 9, 2, 6, 5, headed=headed).as_redelivered()
    pieces = split_head(group, count)
    assert len(pieces[0]) == count
    assert all(pieces)
    assert [each for piece in pieces for each in piece.payloads()] == group.payloads()
    entries = [each for piece in pieces for each in piece.encoded_headers() or [b""] * len(piece)]
    assert entries == (group.encoded_headers() or [b""] * len(group))
    assert all(piece.redelivered and piece.task == group.task for piece in pieces)


@pytest.mark.parametrize("sizes", [[0], [1] * 40, [100_000] * 30])
@HEADED
def test_wire_bytes_is_an_upper_bound(sizes: list[int], *, headed: bool) -> None:
    """The counted size of a group is at least its size in a frame, even with the largest ids."""
    group = group_of(*sizes, headed=headed)
    group.source = 2**31 - 1
    group = group.as_redelivered()
    assert len(encode_frame(1, [[group]], [2**64 - 1])) - len(encode_frame(1, [])) <= wire_bytes(group)


def test_a_frame_has_so_many_groups() -> None:
    """A frame with the maximum number of groups is decoded; one more group is rejected."""
    frame = OpaqueFrame()
    for _ in range(MAX_FRAME_GROUPS):
        frame.groups.add(task=1, lengths=bytes(4))
    assert len(groups_of(frame)) == MAX_FRAME_GROUPS
    frame.groups.add(task=1, lengths=bytes(4))
    with pytest.raises(MalformedError, match=f"a frame has {MAX_FRAME_GROUPS + 1} groups, and may have"):
        groups_of(frame)
