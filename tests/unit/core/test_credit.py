"""Credit on the receiver: absolute grants per task, in messages and bytes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from helpers.acks import credit_of

from tuplewire.errors import CreditExceededError
from tuplewire.session import credit
from tuplewire.session.credit import CreditBook
from tuplewire.session.shares import QueueShares, Share
from tuplewire.values.group import TaskGroup

WINDOW = Share(8, 80)


def book(
    window: Share = WINDOW, *, needs_release_acks: bool = True, exhausted: Counter[int] | None = None
) -> CreditBook:
    """Return a credit book for messages of at most 10 bytes."""
    shares = QueueShares(window, Share(1, 1))
    return CreditBook(
        shares, max_message_bytes=10, needs_release_acks=needs_release_acks, exhausted=exhausted
    )


def group(task: int, count: int, size: int = 10) -> TaskGroup:
    """Return `count` messages of `size` bytes each."""
    return TaskGroup.of(task, [bytes(size)] * count)


def test_says_when_a_window_is_used_up() -> None:
    """A task is exhausted until its sender is granted more credit, or its session ends."""
    exhausted: Counter[int] = Counter()
    granted = book(exhausted=exhausted)
    granted.received([group(1, 7), group(2, 1, size=1)])
    assert not exhausted
    granted.received([group(1, 1), group(3, 8, size=1)])
    assert list(exhausted) == [1, 3]
    granted.released(1, 1, 10)
    assert list(exhausted) == [1, 3]  # its sender has not been notified
    granted.take_changes()
    assert list(exhausted) == [3]
    granted.end()
    assert not exhausted


def test_a_task_whose_flow_is_closed_is_exhausted_no_more() -> None:
    """Closing a flow ends the exhaustion, even if the sender has not been notified of the release."""
    exhausted: Counter[int] = Counter()
    state = book(exhausted=exhausted)
    state.received([group(1, WINDOW.messages)])
    assert list(exhausted) == [1]
    state.released(1, WINDOW.messages, 10 * WINDOW.messages)
    state.close(1)
    assert not exhausted


def test_a_task_is_exhausted_until_its_last_sender_has_credit() -> None:
    """Sessions share the counts: a task is exhausted while any of its senders has no credit."""
    exhausted: Counter[int] = Counter()
    first, second = book(exhausted=exhausted), book(exhausted=exhausted)
    for each in (first, second):
        each.received([group(7, WINDOW.messages)])
    first.end()
    assert list(exhausted) == [7]
    second.end()
    assert not exhausted


def test_more_messages_than_granted() -> None:
    """One message over the grant raises an error that contains both counts."""
    granted = book()
    with pytest.raises(CreditExceededError, match=r"task 1: 9 messages of 0 bytes were sent, 8 of 80"):
        granted.received([group(1, 9, size=0)])


def test_last_message_may_reach_over_the_bytes() -> None:
    """A message may start while byte credit remains; a message that starts beyond it is an error."""
    window = Share(100, 80)
    granted = book(window)
    granted.received([group(1, 7), group(1, 1, size=9), group(1, 1)])
    with pytest.raises(CreditExceededError):
        granted.received([group(1, 1, size=1)])


def test_one_task_does_not_use_the_credit_of_another() -> None:
    """Each task can use only its own credit."""
    granted = book()
    granted.received([group(1, 8)])
    granted.received([group(2, 8)])
    with pytest.raises(CreditExceededError):
        granted.received([group(1, 1)])


def test_a_refused_frame_counts_nothing() -> None:
    """After CreditExceededError, the credit of all tasks in the frame is unchanged."""
    granted = book()
    with pytest.raises(CreditExceededError):
        granted.received([group(1, 8), group(2, 9)])
    granted.received([group(1, 8), group(2, 8)])


def test_changes_are_told_once() -> None:
    """A grant covers the released messages plus one window, and is sent only when it changes."""
    granted = book()
    granted.received([group(1, 5)])
    granted.released(1, 1, 10)
    granted.released(1, 1, 10)
    assert granted.take_changes() == [credit_of(1, 10, 100, 2)]
    assert granted.take_changes() == []


def test_grants_never_fall() -> None:
    """A smaller window does not revoke granted credit."""
    shares = QueueShares(WINDOW, Share(1, 1))
    granted = CreditBook(shares, max_message_bytes=10, needs_release_acks=True)
    granted.received([group(1, 8)])
    shares.shared_by(4)
    granted.released(1, 3, 30)
    assert granted.take_changes() == [credit_of(1, 8, 80, 3)]
    granted.released(1, 5, 50)
    assert granted.take_changes() == [credit_of(1, 10, 100, 8)]


def test_small_releases_are_saved_up() -> None:
    """A sender that does not wait for releases is notified when a quarter of the window is free."""
    granted = book(needs_release_acks=False)
    granted.received([group(1, 8, size=1)])
    assert not granted.released(1, 1, 1)
    assert granted.take_changes() == []
    assert granted.released(1, 1, 1)
    assert granted.take_changes() == [credit_of(1, 10, 82, 2)]


def test_freed_bytes_are_told_as_freed_messages_are() -> None:
    """A quarter of the window in bytes triggers a grant, like a quarter of the messages."""
    granted = book(Share(1000, 80), needs_release_acks=False)
    granted.received([group(1, 2)])
    assert not granted.released(1, 1, 10)
    assert granted.released(1, 1, 10)


@pytest.mark.parametrize("window", [Share(1, 1), Share(3, 10), Share(8, 80), Share(1000, 10)])
def test_a_sender_without_credit_hears_of_the_release_of_everything(window: Share) -> None:
    """With any window size, a sender without credit is granted more when all messages are released."""
    granted = book(window, needs_release_acks=False)
    sent = 0
    while sent < window.messages and sent * 10 < window.size_bytes:
        granted.received([group(1, 1)])
        sent += 1
    told = [granted.released(1, 1, 10) for _ in range(sent)]
    assert any(told)
    (grant,) = granted.take_changes()
    assert grant.messages > sent
    assert grant.bytes > sent * 10


def test_tasks_of_one_session_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks beyond the limit are identified as too many; known tasks continue to work."""
    monkeypatch.setattr(credit, "MAX_TASKS", 3)
    granted = book()
    granted.received([group(task, 1) for task in range(3)])
    known, new = group(2, 1), group(3, 1)
    assert granted.too_many([known, new]) == [new]
    granted.received([group(2, 7)])


def test_the_end_of_a_backlog_is_told() -> None:
    """A release that empties the backlog is always reported, because the sender may wait for it."""
    granted = book(Share(1000, 1000), needs_release_acks=False)
    granted.received([group(1, 2, size=1)])
    assert not granted.released(1, 1, 1)
    assert granted.released(1, 1, 1)
    assert [grant.processed for grant in granted.take_changes()] == [2]


def test_counts_what_came_and_what_is_done_with() -> None:
    """Counts cover all tasks, except messages that were refused or exceeded the credit."""
    granted = book()
    granted.received([group(1, 3), group(2, 2, size=1)])
    granted.released(1, 2, 20)
    granted.refused(group(2, 1, size=1))
    with pytest.raises(CreditExceededError):
        granted.received([group(2, 1, size=1), group(1, 9, size=1)])
    assert (granted.received_messages, granted.received_bytes) == (4, 31)
    assert (granted.released_messages, granted.released_bytes) == (2, 20)


def test_a_session_is_idle_when_every_message_is_released() -> None:
    """A session is idle only when the messages of all its tasks are released."""
    granted = book()
    idle = [granted.idle]
    granted.received([group(1, 1), group(2, 2)])
    idle.append(granted.idle)
    granted.released(1, 1, 10)
    granted.released(2, 1, 10)
    idle.append(granted.idle)
    granted.released(2, 1, 10)
    idle.append(granted.idle)
    assert idle == [True, False, False, True]


def test_larger_shares_are_told_to_a_sender_without_credit() -> None:
    """Only a sender without credit waits for a larger share."""
    granted = book()
    granted.received([group(1, 1)])
    assert not granted.on_share_increase()
    granted.received([group(1, 7)])
    assert granted.on_share_increase()
    assert [each.task for each in granted.take_changes()] == [1]


def test_task_0_is_a_task_like_any_other() -> None:
    """Task 0 has the same credit rules as other tasks, and grants are batched."""
    granted = book(needs_release_acks=False)
    granted.received([group(0, 4)])
    assert not granted.released(0, 1, 10)
    with pytest.raises(CreditExceededError):
        granted.received([group(0, 9)])


def test_a_refusal_leaves_what_was_taken() -> None:
    """If one of two messages is refused, the other still counts: seven more use up the window."""
    granted = book()
    granted.received([group(1, 2)])
    granted.refused(group(1, 1))
    granted.received([group(1, 7)])
    assert granted.all() == [credit_of(1, 8, 80, 0)]
    with pytest.raises(CreditExceededError, match="9 messages"):
        granted.received([group(1, 1, size=0)])


def test_forwarded_messages_need_no_credit() -> None:
    """Forwarded messages were granted credit at their entry worker, so they may exceed the window."""
    forwarded = replace(group(1, 9), forwarded=5, entry_sequence=1)
    granted = book()
    granted.received([forwarded])
    assert granted.received_messages == 9


def test_watched_releases_are_granted_at_once() -> None:
    """A watched release is granted immediately, even in a large window."""
    granted = book(Share(1000, 100_000), needs_release_acks=False)
    granted.received([group(1, 3), group(2, 3)])
    granted.watch_releases([1])
    granted.take_changes()
    assert granted.released(1, 1, 10)
    assert not granted.released(2, 1, 10)
