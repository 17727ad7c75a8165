"""The send window: messages that are resent after a disconnect."""

from __future__ import annotations

import pytest
from helpers.acks import credit_of
from helpers.sending import PLENTY, Sending, contents, groups, payloads

from tuplewire.errors import ProtocolError
from tuplewire.values.group import TaskGroup


def test_resume_sends_again_what_was_not_accepted() -> None:
    """After a disconnect, the frames that the receiver lacks are resent with their old numbers."""
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
    """Messages accepted while disconnected follow the resent frames."""
    sending = Sending()
    sending.write(1)
    sending.offer(1)
    sending.open()
    assert contents(sending.frames()) == [(1, [(1, b"\0")]), (2, [(1, b"\1")])]


def test_cuts_one_after_the_other() -> None:
    """A disconnect during a resumption is resumed in the same way."""
    sending = Sending()
    for _ in range(4):
        sending.write(1)
    sending.open(sequence=1)
    assert [sending.frame().sequence for _ in range(2)] == [2, 3]  # type: ignore[union-attr]
    sending.open(sequence=2)
    assert contents(sending.frames()) == [(3, [(1, b"\2")]), (4, [(1, b"\3")])]


def test_acknowledged_while_sending_again() -> None:
    """A frame that is acknowledged before it is resent is skipped."""
    sending = Sending()
    for _ in range(3):
        sending.write(1)
    sending.open()
    sending.update(2)
    assert contents(sending.frames()) == [(3, [(1, b"\2")])]


def test_resume_keeps_credit() -> None:
    """Resent frames use no new credit, and the grants in the welcome apply."""
    sending = Sending(initial=2)
    sending.write(1, 9)
    sending.open(initial=2, grants=(credit_of(1, 3, PLENTY, 0),))
    assert contents(sending.frames()) == [(1, [(1, b"\0\1")]), (2, [(1, b"\2")])]


@pytest.mark.parametrize("processed", [False, True])
def test_a_new_receiver_gets_everything_again(*, processed: bool) -> None:
    """A new receiver gets all unsettled messages in order, renumbered and marked as redelivered."""
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
    """Messages that were never sent are not marked as redelivered."""
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
    """Credit and processed offsets of a failed receiver do not apply to its successor."""
    sending = Sending(processed=True, initial=5)
    sending.write(1, 9)
    sending.update(1, grants=(credit_of(1, 5, PLENTY, 5),))
    sending.open(incarnation=8, initial=3)
    assert payloads(sending.frames()) == b"\5\6\7"
    sending.update(1)
    assert sending.update(1, grants=(credit_of(1, 3, PLENTY, 2),)) == []
    assert len(sending.update(1, grants=(credit_of(1, 3, PLENTY, 3),))) == 1


def test_a_receiver_that_forgot_the_session() -> None:
    """A receiver that lost the session is treated as a new receiver."""
    sending = Sending()
    for _ in range(3):
        sending.write(1)
    sending.update(2)
    sending.open(sequence=0)
    frames = sending.frames()
    assert contents(frames) == [(1, [(1, b"\2")])]
    assert groups(frames)[0].redelivered


def test_a_receiver_that_knows_more_than_was_sent() -> None:
    """A session that another process has continued is an error and acknowledges nothing."""
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
    """A new receiver does not get the old receiver's missing frames a second time."""
    sending = Sending()
    for _ in range(3):
        sending.write(1)
    sending.open()
    assert sending.frame() is not None
    sending.open(incarnation=8)
    assert payloads(sending.frames()) == b"\0\1\2"
    assert sending.frame() is None


def test_nothing_is_unreleased_once_all_is_released() -> None:
    """Only tasks with unreleased messages are listed."""
    sending = Sending()
    sending.offer(1, 2)
    sending.write(2, 1)
    sending.update(1, grants=(credit_of(1, PLENTY, PLENTY, 2),))
    assert [task for task, _ in sending.window.unreleased()] == [2]


def test_the_last_message_that_is_unreleased_is_told() -> None:
    """The last unreleased entry sequence is reset after everything is released."""
    sending = Sending()
    for first in (50, 3):
        sending.offer_groups(TaskGroup.of(1, [b"x", b"y"]).at(first, 0))
        sending.frames()
        assert list(sending.window.unreleased().values()) == [first + 1]
        released = 2 if first == 50 else 4
        sending.update(1 if first == 50 else 2, grants=(credit_of(1, PLENTY, PLENTY, released),))
        assert sending.window.unreleased() == {}
