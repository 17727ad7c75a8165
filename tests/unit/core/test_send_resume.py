"""The sending end of a session: what is sent again after a break, and what is not."""

from __future__ import annotations

import pytest
from helpers.acks import credit_of
from helpers.sending import PLENTY, Sending, contents, groups, payloads

from tuplewire.errors import ProtocolError
from tuplewire.values.group import TaskGroup


def test_resume_sends_again_what_was_not_accepted() -> None:
    """After a cut exactly the frames that the receiver lacks come again, numbered as before."""
    sending = Sending()
    for task in (1, 2, 1, 2):
        sending.offer(task)
    first = sending.frames()
    for task in (1, 2, 1):
        sending.offer(task)
        first += sending.frames()
    settled = sending.open(sequence=2)
    assert sum(each.messages for each in settled) == 5
    again = sending.frames()
    assert contents(again) == contents(first[2:])
    assert not any(group.redelivered for group in groups(again))


def test_resume_sends_what_is_new_after_what_is_old() -> None:
    """What was accepted while the connection was away follows what is sent again."""
    sending = Sending()
    sending.write(1)
    sending.offer(1)
    sending.open()
    assert contents(sending.frames()) == [(1, [(1, b"\0")]), (2, [(1, b"\1")])]


def test_cuts_one_after_the_other() -> None:
    """A resumption that is cut itself is resumed in the same way."""
    sending = Sending()
    for _ in range(4):
        sending.write(1)
    sending.open(sequence=1)
    assert [sending.frame().sequence for _ in range(2)] == [2, 3]  # type: ignore[union-attr]
    sending.open(sequence=2)
    assert contents(sending.frames()) == [(3, [(1, b"\2")]), (4, [(1, b"\3")])]


def test_acknowledged_while_sending_again() -> None:
    """A frame that is acknowledged before its turn to be sent again is not sent again."""
    sending = Sending()
    for _ in range(3):
        sending.write(1)
    sending.open()
    sending.update(2)
    assert contents(sending.frames()) == [(3, [(1, b"\2")])]


def test_resume_keeps_credit() -> None:
    """Frames that are sent again take no new credit, and the welcome's grants count."""
    sending = Sending(initial=2)
    sending.write(1, 9)
    sending.open(initial=2, grants=(credit_of(1, 3, PLENTY, 0),))
    assert contents(sending.frames()) == [(1, [(1, b"\0\1")]), (2, [(1, b"\2")])]


@pytest.mark.parametrize("processed", [False, True])
def test_a_new_receiver_gets_everything_again(*, processed: bool) -> None:
    """A receiver without memory gets all that is not settled: in order, numbered anew, marked redelivered."""
    sending = Sending(processed=processed)
    for _ in range(2):
        for _ in range(2):
            sending.offer(1)
            sending.offer(2)
        sending.frames()
    sending.update(1)
    sending.open(incarnation=8)
    frames = sending.frames()
    left = b"\4\6\5\7" if not processed else b"\0\2\4\6\1\3\5\7"
    assert [frame.sequence for frame in frames] == [1]
    assert payloads(frames) == left
    assert all(group.redelivered for group in groups(frames))


def test_messages_that_were_never_sent_are_not_marked() -> None:
    """Only what may have been delivered carries the mark; what had no credit yet does not."""
    sending = Sending(initial=1)
    sending.write(1, 2)
    sending.open(incarnation=8)
    sending.update(0, grants=(credit_of(1, 2, PLENTY, 0),))
    (frame,) = sending.frames()
    assert [[(group.data, group.redelivered) for group in run] for run in frame.runs] == [
        [(b"\0", True)],
        [(b"\1", False)],
    ]


def test_a_new_receiver_grants_anew() -> None:
    """Credit and processed offsets of a receiver that died do not count for its successor."""
    sending = Sending(processed=True, initial=5)
    sending.write(1, 9)
    sending.update(1, grants=(credit_of(1, 5, PLENTY, 5),))
    sending.open(incarnation=8, initial=3)
    assert payloads(sending.frames()) == b"\5\6\7"
    sending.update(1)
    assert sending.update(1, grants=(credit_of(1, 3, PLENTY, 2),)) == []
    assert len(sending.update(1, grants=(credit_of(1, 3, PLENTY, 3),))) == 1


def test_a_receiver_that_forgot_the_session() -> None:
    """A receiver that lives on but has forgotten what it acknowledged is as a new one."""
    sending = Sending()
    for _ in range(3):
        sending.write(1)
    sending.update(2)
    sending.open(sequence=0)
    frames = sending.frames()
    assert contents(frames) == [(1, [(1, b"\2")])]
    assert groups(frames)[0].redelivered


def test_a_receiver_that_knows_more_than_was_sent() -> None:
    """A session that another process has gone on with is an error; nothing of ours counts as accepted."""
    sending = Sending()
    sending.write(1)
    with pytest.raises(ProtocolError):
        sending.open(sequence=5)
    with pytest.raises(ProtocolError, match="an incarnation of its own"):
        sending.open(incarnation=8, sequence=5)
    assert sending.acknowledged == 0
    sending.open()
    assert contents(sending.frames()) == [(1, [(1, b"\0")])]


def test_a_new_receiver_during_a_resumption_gets_each_message_once() -> None:
    """The old receiver's missing frames are not sent to the new one as well."""
    sending = Sending()
    for _ in range(3):
        sending.write(1)
    sending.open()
    assert sending.frame() is not None
    sending.open(incarnation=8)
    assert payloads(sending.frames()) == b"\0\1\2"
    assert sending.frame() is None


def test_nothing_is_unreleased_once_all_is_released() -> None:
    """A worker that leaves is asked about tasks whose messages are still there, and about no others."""
    sending = Sending()
    sending.offer(1, 2)
    sending.write(2, 1)
    sending.update(1, grants=(credit_of(1, PLENTY, PLENTY, 2),))
    assert [task for task, _ in sending.window.unreleased()] == [2]


def test_the_last_message_that_is_unreleased_is_told() -> None:
    """By its entry sequence, which begins anew once everything before was released."""
    sending = Sending()
    for first in (50, 3):
        sending.offer_groups(TaskGroup.of(1, [b"x", b"y"]).at(first, 0))
        sending.frames()
        assert list(sending.window.unreleased().values()) == [first + 1]
        released = 2 if first == 50 else 4
        sending.update(1 if first == 50 else 2, grants=(credit_of(1, PLENTY, PLENTY, released),))
        assert sending.window.unreleased() == {}
