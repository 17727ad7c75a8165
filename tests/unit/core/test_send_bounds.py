"""The send window: limits on queued messages, and messages that exceed the receiver's limits."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.acks import credit_of
from helpers.sending import Sending, payloads

from tuplewire.errors import MessageTooLargeError
from tuplewire.session.ledger import DropReason
from tuplewire.values.group import TaskGroup, check_sizes


@pytest.mark.parametrize(
    "bound", [{"max_pending_messages": 5}, {"max_pending_bytes": 5, "max_message_bytes": 5}]
)
def test_bound_of_all_messages(bound: dict[str, Any]) -> None:
    """A batch that would exceed the limit in messages or bytes is refused as a whole."""
    sending = Sending(**bound)
    assert sending.offer(1, 3)
    assert not sending.offer(2, 3)
    assert sending.offer(3, 2)
    assert sending.window.messages == sending.window.size_bytes == 5


def test_bound_per_task() -> None:
    """A task at max_pending_task_messages accepts no more messages, and other tasks are not affected."""
    sending = Sending(max_pending_task_messages=4)
    assert sending.offer(1, 4)
    assert not sending.offer(1)
    assert sending.offer(2, 4)


def test_bound_per_task_counts_the_whole_batch() -> None:
    """Groups of one batch to one task count together against the task's limit."""
    sending = Sending(max_pending_task_messages=4)
    sending.offer(1, 2)
    assert not sending.offer_groups(TaskGroup.of(1, [b"", b""], 5), TaskGroup.of(1, [b""], 6))
    assert sending.window.messages == 2


@pytest.mark.parametrize("sending", [Sending(max_pending_messages=2), Sending(max_pending_task_messages=2)])
def test_a_batch_over_the_bound_is_taken_alone(sending: Sending) -> None:
    """A batch larger than the limit is accepted if the window is empty, so it does not wait forever."""
    assert sending.offer(1, 5)
    assert not sending.offer(1)
    sending.frames()
    sending.update(1)
    assert sending.offer(1, 5)


def test_acknowledged_messages_make_room() -> None:
    """Acknowledged messages no longer count against the limit."""
    sending = Sending(max_pending_messages=2)
    sending.write(1, 2)
    assert not sending.offer(1)
    sending.update(1)
    assert sending.window.messages == sending.window.size_bytes == 0
    assert sending.offer(1)


def test_an_oversize_message_fails_alone() -> None:
    """An oversize payload is an error with its size and limit; other messages are still sent."""
    sending = Sending(max_message_bytes=10)
    sending.offer(1, 2)
    groups = [TaskGroup.of(2, [b"x" * 10] * 5), TaskGroup.of(3, [b"", b"x" * 11])]
    with pytest.raises(MessageTooLargeError, match=r"a message of 11 bytes to task 3 .* limit of 10 bytes"):
        check_sizes(groups, sending.window.max_message_bytes)
    assert payloads(sending.frames()) == b"\0\1"


def test_what_the_receiver_never_takes_is_given_up() -> None:
    """Messages over the receiver's limit are dropped individually when the limit becomes known."""
    sending = Sending(opened=False)
    sending.offer_groups(TaskGroup.of(1, [b"a" * 10, b"b" * 101, b"c" * 100]))
    (settled,) = sending.open(max_message_bytes=100)
    assert (settled.task, settled.messages, settled.size_bytes) == (1, 1, 101)
    assert settled.dropped is DropReason.TOO_LARGE
    assert payloads(sending.frames()) == b"a" * 10 + b"c" * 100
    with pytest.raises(MessageTooLargeError, match="over the limit of 100 bytes"):
        check_sizes([TaskGroup.of(1, [b"x" * 101])], sending.window.max_message_bytes)


def test_frames_keep_to_the_receivers_limit() -> None:
    """Large groups are split to fit the receiver's request size."""
    sending = Sending(opened=False)
    sending.offer_groups(TaskGroup.of(1, [b"x" * 10] * 1000))
    sending.open(max_message_bytes=100, max_request_bytes=2100)
    frames = sending.frames()
    assert all(frame.size_bytes <= 1000 for frame in frames)
    assert sum(frame.messages for frame in frames) == 1000


def test_flows_that_are_not_used_leave_nothing() -> None:
    """Closed flows leave no state, neither for themselves nor for their tasks."""
    sending = Sending()
    for task in range(10):
        sending.offer(task)
    frames = sending.frames()
    sending.update(frames[-1].sequence, grants=tuple(credit_of(task, 1000, 1000, 1) for task in range(10)))
    sending.window.close_unused()
    assert sorted(sending.window.close_unused()) == list(range(10))
    assert not sending.window._flows
    assert not sending.window._flows_to


@pytest.mark.parametrize("task", [0, 1])
def test_nothing_is_sent_beyond_the_credit(task: int) -> None:
    """With more credit, the rest is sent and the task no longer counts as without credit."""
    sending = Sending(initial=2)
    sending.offer(task, 5)
    assert payloads(sending.frames()) == bytes(range(2))
    assert list(sending.window.without_credit) == [task]
    sending.update(1, grants=(credit_of(task, 5, 1000, 0),))
    assert payloads(sending.frames()) == bytes(range(2, 5))
    assert not sending.window.without_credit


def test_the_last_message_of_each_entry_worker_that_is_not_released() -> None:
    """The last unreleased entry is tracked per entry worker, regardless of the route."""
    sending = Sending()
    group = TaskGroup.of(1, [b"a", b"b"])
    sending.offer_groups(group.at(5, 0).as_forwarded(7), group.at(9, 0).as_forwarded(7).as_forwarded(8))
    sending.offer_groups(group.at(3, 0))
    assert sending.window.unreleased() == {(1, 7): 10, (1, 0): 4}
    sending.offer_groups(group.at(1, 0).as_forwarded(7).as_forwarded(8).as_forwarded(9))
    assert sending.window.unreleased() == {(1, 7): 10, (1, 0): 4}
