"""What callers hand over: counts that an interrupt has left too high go with the next take()."""

from __future__ import annotations

from tuplewire.connection.handover import HandOver
from tuplewire.group import TaskGroup


def test_an_interrupted_count_is_taken_out() -> None:
    """Counted and not appended, a message must not stay pending when nothing is sent after it."""
    handed = HandOver()
    handed.messages, handed.of_flow = 1, {7: 1}  # as an interrupt in add_one leaves it
    assert handed
    assert not list(handed.take())
    assert (handed.messages, handed.size_bytes, handed.of_flow) == (0, 0, {})
    assert not handed


def test_one_plain_message_joins_the_others() -> None:
    """Messages alone, in a row, become one group for each task and source; each counts for its task."""
    handed = HandOver()
    handed.add_one(7, 1, b"a")
    handed.add([TaskGroup.of(7, [b"b"], 1)], None, retain=False)
    assert (handed.messages, handed.size_bytes, handed.of_flow) == (2, 2, {7: 2})
    ((groups, token, retain),) = handed.take()
    assert ([group.payloads() for group in groups], token, retain) == ([[b"a", b"b"]], None, False)
