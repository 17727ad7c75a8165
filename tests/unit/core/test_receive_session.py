"""The receiving end of a session: each frame is accepted once, in order."""

from __future__ import annotations

import pytest
from helpers.acks import ack_of, credit_of, refusal_of

from tuplewire.errors import (
    CreditExceededError,
    MalformedError,
    SequenceGapError,
    TaskNotLocalError,
    UnknownTaskError,
)
from tuplewire.session import credit, receive
from tuplewire.session.credit import CreditBook
from tuplewire.session.receive import MOST_REFUSALS, ReceiveSession
from tuplewire.session.shares import QueueShares, Share
from tuplewire.values.group import TaskGroup
from tuplewire.wire.translate import code_name


def session(*, messages: int = 8, needs_release_acks: bool = True) -> ReceiveSession:
    """Return a session that grants this number of messages per task."""
    window = Share(messages, 1000)
    return ReceiveSession(
        1,
        CreditBook(
            QueueShares(window, Share(1, 1)), max_message_bytes=10, needs_release_acks=needs_release_acks
        ),
    )


def group(task: int = 1, count: int = 1) -> TaskGroup:
    """Return `count` messages of one byte."""
    return TaskGroup.of(task, [b"x"] * count)


def test_a_repeated_frame_is_not_new() -> None:
    """A frame that was already accepted is reported as a repeat and uses no credit."""
    state = session(messages=2)
    assert state.accept(1, [group()])
    assert not state.accept(1, [group()])
    assert state.accept(2, [group()])
    assert not state.accept(1, [group()])


def test_a_gap_is_an_error() -> None:
    """A frame that skips a number is not accepted."""
    state = session()
    state.accept(1, [group()])
    with pytest.raises(SequenceGapError, match="frame 3 came after frame 1"):
        state.accept(3, [group()])
    assert state.last_sequence == 1


def test_frame_over_credit_is_not_accepted() -> None:
    """A frame beyond the credit is an error and leaves the session unchanged."""
    state = session(messages=2)
    with pytest.raises(CreditExceededError):
        state.accept(1, [group(1, 2), group(2, 3)])
    assert state.last_sequence == 0
    assert state.accept(1, [group(1, 2), group(2, 2)])


def test_update_only_when_there_is_news() -> None:
    """An update is sent once, and only after a change."""
    state = session()
    assert state.update() is None
    state.accept(1, [group()])
    state.update()
    assert state.update() is None
    state.credit.released(1, 1, 1)
    assert state.update() == ack_of(1, [credit_of(1, 9, 1001, 1)], [], 1)


def test_refusal_is_told_with_its_reason_and_takes_no_credit() -> None:
    """The sender receives refusals with the owner, and neither side counts the refused messages."""
    state = session()
    state.accept(1, [group(1, 3)])
    state.refuse(1, group(1, 3), TaskNotLocalError("task 1 is on w2", "w2:7000"))
    refusal = refusal_of(1, 1, 3, "TASK_NOT_LOCAL", "task 1 is on w2", "w2:7000")
    assert state.update() == ack_of(1, [], [refusal])
    assert state.credit.all() == []


def test_denied_groups_are_refused_and_not_remembered() -> None:
    """Only the denied groups of a frame are refused, and no state for them remains."""
    state = session()
    mine, denied = group(1), group(2, 3)
    assert state.accept(1, [mine, denied], [(denied, UnknownTaskError("no task 2"))]) == [mine]
    assert [grant.task for grant in state.credit.all()] == [1]
    update = state.update()
    assert update is not None
    assert [(refusal.task, refusal.messages) for refusal in update.refusals] == [(2, 3)]


def test_tasks_beyond_the_limit_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups to tasks beyond the session's limit are refused; the others are accepted."""
    monkeypatch.setattr(credit, "MAX_TASKS", 3)
    monkeypatch.setattr(receive, "MAX_TASKS", 3)
    state = session()
    groups = [group(task) for task in range(5)]
    assert state.accept(1, groups) == groups[:3]
    update = state.update()
    assert update is not None
    assert [(each.task, code_name(each.code)) for each in update.refusals] == [
        (3, "RESOURCE_LIMIT"),
        (4, "RESOURCE_LIMIT"),
    ]
    assert "at most 3 tasks at a time" in update.refusals[0].detail
    assert state.accept(2, [again := group(2)]) == [again]


def test_a_closed_flow_makes_room_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """A closed flow leaves no state, so another task can be used."""
    monkeypatch.setattr(credit, "MAX_TASKS", 1)
    state = session()
    for number in range(1, 101):
        task = group(number)
        closed = [number - 1] if number > 1 else []
        assert state.accept(number, [task], closed=closed) == [task]
        state.credit.released(number, 1, 1)
    assert [grant.task for grant in state.credit.all()] == [100]


def test_a_flow_in_use_is_not_closed() -> None:
    """Closing a flow that is unknown or has outstanding messages violates the protocol."""
    state = session()
    state.accept(1, [group(1)])
    with pytest.raises(MalformedError, match="closed while something of it is outstanding"):
        state.accept(2, [], closed=[1])
    with pytest.raises(MalformedError, match="or unknown"):
        state.accept(2, [], closed=[7])


def test_a_flow_that_is_used_again_counts_from_zero() -> None:
    """A frame may close a flow and reuse it: the grant is the grant of a new flow."""
    state = session(messages=8)
    state.accept(1, [group(1, 5)])
    state.credit.released(1, 5, 5)
    state.accept(2, [group(1, 2)], closed=[1])
    state.credit.released(1, 2, 2)
    assert state.credit.all() == [credit_of(1, 10, 1002, 2)]


def test_resume_says_everything_again() -> None:
    """A resuming sender receives the last frame number, all grants and the unacknowledged refusals."""
    state = session()
    state.accept(1, [group(1), group(2)])
    state.refuse(1, group(1), UnknownTaskError("no task 1"))
    state.accept(2, [group(3)])
    state.refuse(2, group(3), UnknownTaskError("no task 3"))
    update = state.resume(acknowledged=1)
    assert update.sequence == 2
    assert {grant.task: grant.processed for grant in update.credits} == {2: 0}
    assert [refusal.task for refusal in update.refusals] == [3]
    assert state.update() is None


def test_resume_twice_says_the_same() -> None:
    """A lost reply to a resume request is sent again."""
    state = session()
    state.accept(1, [group(1)])
    state.refuse(1, group(1), UnknownTaskError("no task 1"))
    assert state.resume(0) == state.resume(0)


def test_each_update_says_what_it_follows() -> None:
    """An update contains the previous update's sequence, so that the sender detects a lost one."""
    state = session()
    state.accept(1, [group(1)])
    first = state.update()
    state.accept(2, [group(1)])
    second = state.update()
    assert first is not None
    assert second is not None
    assert (first.after, first.sequence, second.after, second.sequence) == (0, 1, 1, 2)


def test_a_probe_is_answered_with_everything() -> None:
    """After a probe, the next update contains all grants and all unacknowledged refusals."""
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
    assert {grant.task for grant in answer.credits} == {2}
    assert state.update() is None


def _many_refused(frames: int, refusals_each: int) -> ReceiveSession:
    state = session(messages=10**9)
    for number in range(1, frames + 1):
        groups = [group(task) for task in range(refusals_each)]
        state.accept(number, groups)
        for each in groups:
            state.refuse(number, each, UnknownTaskError("nobody has it"))
    return state


def test_many_refusals_are_told_in_parts() -> None:
    """Each update acknowledges the frames of its refusals and names the update before it."""
    state = _many_refused(5, MOST_REFUSALS // 2)
    updates = []
    while (update := state.update()) is not None:
        updates.append(update)
    assert [(each.after, each.sequence, len(each.refusals)) for each in updates] == [
        (0, 2, MOST_REFUSALS),
        (2, 4, MOST_REFUSALS),
        (4, 5, MOST_REFUSALS // 2),
    ]


def test_a_frame_with_more_refusals_is_told_whole() -> None:
    """One update contains all refusals of a frame, so that a lost update is detected."""
    state = _many_refused(2, MOST_REFUSALS + 1)
    told = [state.update(), state.update(), state.update()]
    assert [each and (each.after, each.sequence) for each in told] == [(0, 1), (1, 2), None]


def test_a_sender_that_resumes_hears_many_refusals_in_parts() -> None:
    """The first part may name an old frame; frames that are resent because of it are not new."""
    state = _many_refused(3, MOST_REFUSALS)
    assert state.update()
    welcome = state.resume(0)
    assert (welcome.sequence, len(welcome.refusals), state.has_more) == (1, MOST_REFUSALS, True)
    assert not state.accept(2, [group()])
    rest = [state.update(), state.update(), state.update()]
    assert [each and (each.after, each.sequence) for each in rest] == [(1, 2), (2, 3), None]


def test_a_sender_waits_for_refusals_and_for_room() -> None:
    """Refusals and new credit for a full task are sent immediately; other updates may wait."""
    state = session(messages=2)
    seen = []
    state.accept(1, [group()])
    seen.append(state.urgent)
    state.refuse(1, group(), UnknownTaskError("no such task"))
    seen.append(state.urgent)
    state.update()
    state.accept(2, [group(count=2)])
    seen.append(state.urgent)
    state.credit.released(1, 2, 2)
    seen.append(state.urgent)
    assert seen == [False, True, False, True]
