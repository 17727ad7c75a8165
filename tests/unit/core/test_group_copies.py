"""Copies of a group keep every field except the fields that the copy changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import pytest

from tuplewire.values.batch import TaskMessageBatch, as_groups
from tuplewire.values.dead_letters import again, dead_letter
from tuplewire.values.group import TaskGroup
from tuplewire.wire.codec import decode, encode_frame, groups_of
from tuplewire.wire.messaging_pb2 import SendRequest
from tuplewire.wire.opaque_pb2 import OpaqueFrame

FULL = TaskGroup(
    3,
    None,
    (1).to_bytes(4, "little"),
    b"p",
    redelivered=True,
    forwarded=7,
    entry_sequence=9,
    accepted_micros=11,
    retained_upstream=True,
)
"""A group with non-default values in all fields except headers, which dead letters rewrite."""

WORKER_FIELDS = {"forwarded", "flow", "entry_sequence", "retained_upstream"}
HEADERS = {"header_lengths", "header_data", "size_bytes"}


@pytest.mark.parametrize(
    ("copy", "changed"),
    [
        (lambda group: group.as_redelivered(), set()),
        (lambda group: group.as_new(), WORKER_FIELDS),
        (lambda group: group.at(20, 30), {"entry_sequence", "retained_upstream"}),
        (lambda group: group.accepted(30), set()),
        (lambda group: group.as_forwarded(2), {"forwarded", "flow"}),
        (lambda group: group.as_forwarded(2).out_of_queue(0), {"forwarded", "flow"}),
        (lambda group: group.slice(0, 1), set()),
        (lambda group: again(group, 1), HEADERS),
        (lambda group: dead_letter(group, 99, 1, "bad", 0), {"task", "flow", *HEADERS}),
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


def test_a_time_of_acceptance_is_set_once() -> None:
    """A later worker does not replace the acceptance time that the first worker set."""
    group = TaskGroup.of(3, [b"p"])
    assert group.at(1, 30).accepted_micros == 30
    assert group.at(1, 30).at(2, 40).accepted_micros == 30


def test_new_messages_have_nothing_that_a_worker_sets() -> None:
    """A relay that reads messages and sends them again counts as their original sender."""
    again = FULL.as_forwarded(2).as_new()
    assert (again.forwarded, again.entry_sequence, again.retained_upstream) == (0, 0, False)


def test_what_leaves_a_queue_has_its_route() -> None:
    """Leaving a queue resets the number of hops; new messages get their entry worker."""
    forwarded = FULL.as_forwarded(2)
    assert forwarded.unqueued_hops
    left = forwarded.out_of_queue(0)
    assert (left.unqueued_hops, left.flow) == (0, forwarded.flow)
    group = TaskGroup.of(3, [b"p"])
    assert group.out_of_queue(0) is group
    assert group.out_of_queue(9).forwarded == 9


def test_every_field_travels() -> None:
    """Every field is preserved between workers."""
    frame = decode(SendRequest, encode_frame(1, [[FULL]], accepted_micros=[FULL.accepted_micros]))
    assert isinstance(frame, OpaqueFrame)
    [arrived] = groups_of(frame)
    for name in (field.name for field in fields(TaskGroup)):
        assert getattr(arrived, name) == getattr(FULL, name), name
