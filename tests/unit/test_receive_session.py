"""The receiving end of a session: each frame once, in order."""

from __future__ import annotations

import pytest

from tuplewire.errors import CreditExceededError, NotLocalError, SequenceGapError, UnknownTaskError
from tuplewire.group import TaskGroup
from tuplewire.session.credit import CreditBook, Grant
from tuplewire.session.receive import AckUpdate, ReceiveSession, Refusal
from tuplewire.session.shares import QueueShares, Window


def session(*, messages: int = 8, eager: bool = True) -> ReceiveSession:
    """Return a session that grants so many messages per task."""
    window = Window(messages, 1000)
    return ReceiveSession(
        "a", 1, CreditBook(QueueShares(window, Window(1, 1)), max_message_bytes=10, eager=eager)
    )


def group(task: int = 1, count: int = 1) -> TaskGroup:
    """Return so many messages of one byte."""
    return TaskGroup.of(task, [b"x"] * count)


def test_accepts_frames_in_order() -> None:
    """Frames 1, 2, 3 are new, and the last of them is remembered."""
    state = session()
    assert [state.accept(number, [group()]) for number in (1, 2, 3)] == [True] * 3
    assert state.last_sequence == 3


def test_a_repeated_frame_is_not_new() -> None:
    """A frame that was accepted before is reported as such, and takes no credit."""
    state = session(messages=2)
    assert state.accept(1, [group()])
    assert not state.accept(1, [group()])
    assert state.accept(2, [group()])
    assert not state.accept(1, [group()])


def test_a_gap_is_an_error() -> None:
    """A frame that skips a number is not taken."""
    state = session()
    state.accept(1, [group()])
    with pytest.raises(SequenceGapError, match="frame 3 came after frame 1"):
        state.accept(3, [group()])
    assert state.last_sequence == 1


def test_frame_over_credit_is_not_accepted() -> None:
    """A frame over the credit is an error, and the session may be resumed as if it had not come."""
    state = session(messages=2)
    with pytest.raises(CreditExceededError):
        state.accept(1, [group(1, 2), group(2, 3)])
    assert state.last_sequence == 0
    assert state.accept(1, [group(1, 2), group(2, 2)])


def test_update_acknowledges_cumulatively() -> None:
    """One acknowledgement stands for every frame up to it."""
    state = session()
    state.accept(1, [group()])
    state.accept(2, [group()])
    assert state.update() == AckUpdate(2, [], [])


def test_update_only_when_there_is_news() -> None:
    """What was told is not told again."""
    state = session()
    assert state.update() is None
    state.accept(1, [group()])
    state.update()
    assert state.update() is None
    state.credit.released(1, 1, 1)
    assert state.update() == AckUpdate(1, [Grant(1, 9, 1001, 1)], [], 1)


def test_refusal_is_told_with_its_reason_and_releases_credit() -> None:
    """Messages that were refused are named to the sender, with the owner, and are done with."""
    state = session()
    state.accept(1, [group(1, 3)])
    state.refuse(1, group(1, 3), NotLocalError("task 1 is on w2", "w2:7000"))
    refusal = Refusal(1, 1, 3, "NOT_LOCAL", "task 1 is on w2", "w2:7000")
    assert state.update() == AckUpdate(1, [Grant(1, 11, 1003, 3)], [refusal])


def test_resume_says_everything_again() -> None:
    """A sender that comes back hears the last frame, every grant, and the refusals it has not heard."""
    state = session()
    state.accept(1, [group(1), group(2)])
    state.refuse(1, group(1), UnknownTaskError("no task 1"))
    state.accept(2, [group(3)])
    state.refuse(2, group(3), UnknownTaskError("no task 3"))
    update = state.resume(acknowledged=1)
    assert update.sequence == 2
    assert {grant.lane: grant.processed for grant in update.grants} == {1: 1, 2: 0, 3: 1}
    assert [refusal.task for refusal in update.refusals] == [3]
    assert state.update() is None


def test_resume_twice_says_the_same() -> None:
    """An answer that was lost is given again."""
    state = session()
    state.accept(1, [group(1)])
    state.refuse(1, group(1), UnknownTaskError("no task 1"))
    assert state.resume(0) == state.resume(0)


def test_each_update_says_what_it_follows() -> None:
    """An update names the sequence that was told before it, so that a lost one is noticed."""
    state = session()
    state.accept(1, [group(1)])
    first = state.update()
    state.accept(2, [group(1)])
    second = state.update()
    assert first is not None
    assert second is not None
    assert (first.after, first.sequence, second.after, second.sequence) == (0, 1, 1, 2)


def test_a_probe_is_answered_with_everything() -> None:
    """After a probe the next update holds every grant, and every refusal that was not heard of."""
    state = session()
    state.accept(1, [group(1)])
    state.refuse(1, group(1), UnknownTaskError("no task 1"))
    state.accept(2, [group(2)])
    lost = state.update()
    assert lost is not None
    assert state.update() is None
    state.probe(0)
    answer = state.update()
    assert answer is not None
    assert (answer.after, answer.sequence) == (0, 2)
    assert answer.refusals == lost.refusals
    assert {grant.lane for grant in answer.grants} == {1, 2}
    assert state.update() is None
