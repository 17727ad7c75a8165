"""The shares of sessions in a task's queue, and the space used by messages of closed sessions."""

from __future__ import annotations

from helpers.acks import credit_of

from tuplewire.session.credit import CreditBook
from tuplewire.session.shares import QueueShares, Share
from tuplewire.values.group import TaskGroup

TOTAL = Share(100, 1000)


def shares(sessions: int = 1) -> QueueShares:
    """Return the shares for this number of sessions."""
    made = QueueShares(TOTAL, Share(4, 40))
    made.shared_by(sessions)
    return made


def test_each_session_gets_its_part() -> None:
    """A queue is divided evenly, down to the minimum share."""
    assert shares().initial == TOTAL
    assert shares(5).window(1) == Share(20, 200)
    assert shares(1000).window(1) == Share(4, 40)


def test_what_was_left_is_taken_off_the_shares() -> None:
    """Messages of closed sessions reduce the shares of the same queue only."""
    made = shares(2)
    made.add_orphaned(7, 60, 100)
    assert made.window(7) == Share(20, 450)
    assert made.window(8) == Share(50, 500)
    assert made.nearly_full_tasks == [7]


def test_a_full_queue_has_no_room() -> None:
    """If messages of closed sessions fill the queue, all shares are zero."""
    made = shares()
    made.add_orphaned(7, 60, 100)
    made.add_orphaned(7, 50, 100)
    made.add_orphaned(8, 1, 1000)
    assert made.window(7) == made.window(8) == Share(0, 0)


def test_little_is_let_be() -> None:
    """Messages of closed sessions are ignored below a quarter of the queue."""
    made = shares()
    made.add_orphaned(7, 24, 249)
    assert made.window(7) == TOTAL
    assert not made.nearly_full_tasks
    assert not made.released(7, 24, 249)


def test_room_is_told_by_quarters() -> None:
    """Free space is announced after each quarter of the queue, and when the rest is small."""
    made = shares()
    made.add_orphaned(7, 100, 10)
    assert not made.released(7, 20, 2)
    assert made.released(7, 5, 1)
    assert made.window(7) == Share(25, 993)
    assert not made.released(7, 24, 2)
    assert made.released(7, 27, 2)
    assert made.window(7) == TOTAL


def test_a_new_session_starts_with_what_room_there_is() -> None:
    """A new session is notified about full queues, and about space in them as soon as there is any."""
    made = shares()
    made.add_orphaned(7, 100, 10)
    book = CreditBook(made, max_message_bytes=10, needs_release_acks=False)
    assert book.initial == TOTAL
    assert book.all() == [credit_of(7, 0, 0, 0)]
    assert made.released(7, 100, 10)
    assert book.on_space_freed(7)
    assert book.take_changes() == [credit_of(7, 100, 1000, 0)]


def test_what_a_session_leaves() -> None:
    """Unreleased messages are outstanding when a session closes; fully released tasks are not."""
    book = CreditBook(shares(), max_message_bytes=10, needs_release_acks=False)
    book.received([TaskGroup.of(1, [b"a"] * 5), TaskGroup.of(2, [b"b"] * 3)])
    book.released(1, 2, 2)
    book.released(2, 3, 3)
    assert book.outstanding() == [(1, 3, 3)]


def test_others_hear_of_room_when_it_is_much() -> None:
    """Space is announced after a quarter of the queue since the last time, in messages or bytes."""
    made = shares()
    made.add_orphaned(7, 80, 900)
    assert not made.released(7, 1, 100)
    assert not made.released(7, 1, 149)
    assert made.released(7, 1, 1)
    assert not made.released(7, 24, 10)
    assert made.released(7, 1, 0)


def test_room_for_one_is_room() -> None:
    """A queue with space for one message or one byte is not full."""
    made = QueueShares(TOTAL, Share(1, 1))
    made.shared_by(1)
    made.add_orphaned(7, 99, 0)
    made.add_orphaned(8, 0, 999)
    assert (made.window(7), made.window(8)) == (Share(1, 1000), Share(100, 1))


def test_the_smallest_share_is_told() -> None:
    """The smallest share is the share of the fullest queue."""
    made = shares(2)
    assert made.smallest == Share(50, 500)
    made.add_orphaned(7, 60, 100)
    made.add_orphaned(8, 80, 100)
    assert made.smallest == Share(10, 450)
