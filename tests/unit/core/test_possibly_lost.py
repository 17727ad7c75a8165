"""The send window's upper bound on the number of messages lost with a failed receiver."""

from __future__ import annotations

import pytest
from helpers.acks import ack_of, credit_of
from helpers.sending import PLENTY, reopen

from tuplewire.session.send import SendWindow
from tuplewire.settings.config import AckMode, SessionSettings
from tuplewire.values.group import TaskGroup


def sent(
    *messages: int, acknowledged: int, released: int = 0, mode: AckMode = AckMode.QUEUED, worker: int = 0
) -> SendWindow:
    """Return a window that has sent these counts to task 1, one frame each, and received these updates."""
    window = SendWindow(SessionSettings(ack_mode=mode))
    reopen(window, 7, worker)
    for count in messages:
        assert window.offer([TaskGroup.of(1, [b"x"] * count)])
        assert window.next_frame() is not None
    grants = [credit_of(1, PLENTY, PLENTY, released)] if released else []
    window.update(ack_of(acknowledged, grants, []))
    return window


def test_what_was_acknowledged_and_not_released_counts() -> None:
    """Acknowledged messages count until they are released; messages in flight are resent."""
    window = sent(10, 20, acknowledged=1, released=4)
    reopen(window, 8)
    assert window.possibly_lost == 6


@pytest.mark.parametrize("drained", [False, True])
def test_each_death_counts_for_itself(*, drained: bool) -> None:
    """Each failed receiver counts only its own messages; a drained one reports its own losses."""
    window = sent(10, acknowledged=1)
    window.receiver_answers = drained
    reopen(window, 8)
    reopen(window, 9)
    assert window.possibly_lost == (0 if drained else 10)
    assert window.offer([TaskGroup.of(1, [b"x"] * 3)])
    assert window.next_frame() is not None
    window.update(ack_of(1, [], []))
    reopen(window, 10)
    assert window.possibly_lost == (3 if drained else 13)


def test_nothing_counts_that_is_kept_until_it_is_processed() -> None:
    """Messages that are retained until they are processed are resent, not lost."""
    window = sent(10, 20, acknowledged=2, released=4, mode=AckMode.PROCESSED)
    reopen(window, 8)
    assert window.possibly_lost == 0


def test_kept_and_passing_messages_are_told_apart() -> None:
    """On a worker's connection, only messages without a copy count, also after a partial release."""
    for released, lost in ((0, 5), (2, 5), (3, 5), (5, 3), (8, 0), (10, 0)):
        window = SendWindow(SessionSettings())
        reopen(window, 7)
        for count, retain in ((3, True), (5, False), (2, True)):
            assert window.offer([TaskGroup.of(1, [b"x"] * count)], "token", retain=retain)
        assert window.next_frame() is not None
        grants = [credit_of(1, PLENTY, PLENTY, released)] if released else []
        window.update(ack_of(1, grants, []))
        reopen(window, 8)
        assert window.possibly_lost == lost, released


def test_a_worker_that_has_forgotten_the_session_is_not_dead() -> None:
    """A worker with the same incarnation still has its messages, even without the session."""
    window = sent(10, acknowledged=1, worker=70)
    reopen(window, 8, worker=70)
    assert window.possibly_lost == 0
    window = sent(10, acknowledged=1, worker=70)
    reopen(window, 8, worker=71)
    assert window.possibly_lost == 10


def test_what_nobody_else_has() -> None:
    """`unkept()` counts messages that wait or are in flight, except those retained by their program."""
    window = SendWindow(SessionSettings())
    reopen(window, 7)
    plain = TaskGroup.of(1, [b"x"] * 2)
    for group in (plain, plain.at(1, 0, retained_upstream=True), plain.at(3, 0).as_forwarded(9)):
        assert window.offer([group], "token", retain=group.retained_upstream)
    assert window.count_unretained() == 4
    assert window.next_frame() is not None
    assert window.count_unretained() == 4
    window.update(ack_of(1, [], []))
    assert (window.count_unretained(), window.messages) == (0, 2)
