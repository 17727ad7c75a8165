"""The receiving end of a session: each frame once and in order, and credit for the shares of queues."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from helpers.cursors import ack_of, credit_of, refusal_of

from tuplewire.errors import (
    CreditExceededError,
    MalformedError,
    SequenceGapError,
    TaskNotLocalError,
    UnknownTaskError,
)
from tuplewire.session import credit, receive
from tuplewire.session.credit import SessionCredit
from tuplewire.session.receive import MAX_REFUSALS, ReceiveSession
from tuplewire.session.shares import Amount, QueueShares
from tuplewire.values.group import TaskGroup
from tuplewire.wire.translate import code_name

WINDOW = Amount(8, 80)


def book(
    window: Amount = WINDOW, *, every_release: bool = True, blocked: Counter[int] | None = None
) -> SessionCredit:
    """Return a credit book for messages of at most 10 bytes."""
    shares = QueueShares(window, Amount(1, 1))
    return SessionCredit(
        shares, max_message_bytes=10, grants_every_release=every_release, blocked_sessions=blocked
    )


def session(messages: int = 8) -> ReceiveSession:
    """Return a session that grants this number of messages per task."""
    return ReceiveSession(1, book(Amount(messages, 1000)))


def group(task: int, count: int, size: int = 10) -> TaskGroup:
    """Return `count` messages of `size` bytes each."""
    return TaskGroup.of(task, [bytes(size)] * count)


def small(task: int = 1, count: int = 1) -> TaskGroup:
    """Return `count` messages of one byte."""
    return group(task, count, 1)


def test_a_gap_is_an_error() -> None:
    """A frame that skips a number is not accepted."""
    state = session()
    state.accept(1, [small()])
    with pytest.raises(SequenceGapError, match="frame 3 came after frame 1"):
        state.accept(3, [small()])
    assert state.last_sequence == 1


def test_update_only_when_there_is_news() -> None:
    """An update is sent once, and only after a change."""
    state = session()
    assert state.next_ack() is None
    state.accept(1, [small()])
    state.next_ack()
    assert state.next_ack() is None
    state.credit.on_released(1, 1, 1)
    assert state.next_ack() == ack_of(1, [credit_of(1, 9, 1001, 1)], [], 1)


def test_refusal_is_told_with_its_reason_and_takes_no_credit() -> None:
    """The sender receives refusals with the owner, and neither side counts the refused messages."""
    state = session()
    state.accept(1, [small(1, 3)])
    state.refuse(1, small(1, 3), TaskNotLocalError("task 1 is on w2", "w2:7000"))
    refusal = refusal_of(1, 1, 3, "TASK_NOT_LOCAL", "task 1 is on w2", "w2:7000")
    assert state.next_ack() == ack_of(1, [], [refusal])
    assert state.credit.all_grants() == []


def test_denied_groups_are_refused_and_not_remembered() -> None:
    """Only the denied groups of a frame are refused, and no state for them remains."""
    state = session()
    mine, denied = small(1), small(2, 3)
    assert state.accept(1, [mine, denied], [(denied, UnknownTaskError("no task 2"))]) == [mine]
    assert [grant.task for grant in state.credit.all_grants()] == [1]
    update = state.next_ack()
    assert update is not None
    assert [(refusal.task, refusal.messages) for refusal in update.refusals] == [(2, 3)]


def test_tasks_beyond_the_limit_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups to tasks beyond the session's limit are refused; the others are accepted."""
    monkeypatch.setattr(credit, "MAX_TASKS", 3)
    monkeypatch.setattr(receive, "MAX_TASKS", 3)
    state = session()
    groups = [small(task) for task in range(5)]
    assert state.accept(1, groups) == groups[:3]
    update = state.next_ack()
    assert update is not None
    assert [(each.task, code_name(each.code)) for each in update.refusals] == [
        (3, "RESOURCE_LIMIT"),
        (4, "RESOURCE_LIMIT"),
    ]
    assert "over 3 tasks in a session" in update.refusals[0].detail
    assert state.accept(2, [again := small(2)]) == [again]


def test_a_closed_flow_makes_room_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """A closed flow leaves no state, so another task can be used."""
    monkeypatch.setattr(credit, "MAX_TASKS", 1)
    state = session()
    for number in range(1, 101):
        task = small(number)
        closed = [number - 1] if number > 1 else []
        assert state.accept(number, [task], closed_flows=closed) == [task]
        state.credit.on_released(number, 1, 1)
    assert [grant.task for grant in state.credit.all_grants()] == [100]


def test_a_flow_in_use_is_not_closed() -> None:
    """Closing a flow that is unknown or has outstanding messages violates the protocol."""
    state = session()
    state.accept(1, [small(1)])
    with pytest.raises(MalformedError, match="it is unknown, or has unreleased messages"):
        state.accept(2, [], closed_flows=[1])
    with pytest.raises(MalformedError, match="it is unknown, or"):
        state.accept(2, [], closed_flows=[7])


def _many_refused(frames: int, refusals_each: int) -> ReceiveSession:
    state = session(10**9)
    for number in range(1, frames + 1):
        groups = [small(task) for task in range(refusals_each)]
        state.accept(number, groups)
        for each in groups:
            state.refuse(number, each, UnknownTaskError("nobody has it"))
    return state


def test_many_refusals_are_told_in_parts() -> None:
    """Each update acknowledges the frames of its refusals, all of a frame, and names the update before it."""
    state = _many_refused(5, MAX_REFUSALS // 2)
    updates = []
    while (update := state.next_ack()) is not None:
        updates.append(update)
    assert [(each.previous_sequence, each.sequence, len(each.refusals)) for each in updates] == [
        (0, 2, MAX_REFUSALS),
        (2, 4, MAX_REFUSALS),
        (4, 5, MAX_REFUSALS // 2),
    ]
    state = _many_refused(2, MAX_REFUSALS + 1)
    told = [state.next_ack(), state.next_ack(), state.next_ack()]
    assert [each and (each.previous_sequence, each.sequence) for each in told] == [(0, 1), (1, 2), None]


def test_a_sender_that_resumes_hears_many_refusals_in_parts() -> None:
    """The first part may name an old frame; frames that are resent because of it are not new."""
    state = _many_refused(3, MAX_REFUSALS)
    assert state.next_ack()
    welcome = state.build_full_state(0)
    assert (welcome.sequence, len(welcome.refusals), state.has_more) == (1, MAX_REFUSALS, True)
    assert not state.accept(2, [small()])
    rest = [state.next_ack(), state.next_ack(), state.next_ack()]
    assert [each and (each.previous_sequence, each.sequence) for each in rest] == [(1, 2), (2, 3), None]


def test_a_sender_waits_for_refusals_and_for_room() -> None:
    """Refusals and new credit for a full task are sent immediately; other updates may wait."""
    state = session(2)
    state.accept(1, [small()])
    seen = [state.urgent]
    state.refuse(1, small(), UnknownTaskError("no such task"))
    seen.append(state.urgent)
    state.next_ack()
    state.accept(2, [small(count=2)])
    seen.append(state.urgent)
    state.credit.on_released(1, 2, 2)
    assert [*seen, state.urgent] == [False, True, False, True]


def test_old_refusals_are_forgotten() -> None:
    """A session remembers only the refusals of the most recent frames."""
    told = _many_refused(70, 1).build_full_state(0).refusals
    assert 1 < len(told) < 70
    assert told[-1].frame_sequence == 70
    assert told[0].frame_sequence > 1


def test_a_task_blocks_until_its_last_sender_has_credit() -> None:
    """Sessions share the counts: a task blocks while any of its senders has no credit."""
    blocked: Counter[int] = Counter()
    first, second = book(blocked=blocked), book(blocked=blocked)
    for each in (first, second):
        each.on_received([group(7, WINDOW.messages)])
    first.on_disconnected()
    assert list(blocked) == [7]
    second.on_disconnected()
    assert not blocked


@pytest.mark.parametrize(
    ("window", "accepted", "refused", "says"),
    [
        (WINDOW, [], group(1, 9, size=0), r"task 1: 9 messages of 0 bytes were sent, only 8 of 80"),
        (WINDOW, [group(1, 8), group(2, 8)], group(1, 1), "9 messages"),
        (WINDOW, [group(0, 4)], group(0, 9), "task 0: 13 messages"),
        # The last message may exceed the bytes, and the next one may not start.
        (
            Amount(100, 80),
            [group(1, 7), group(1, 1, size=9), group(1, 1)],
            group(1, 1, size=1),
            "10 messages",
        ),
    ],
)
def test_more_messages_than_granted(
    window: Amount, accepted: list[TaskGroup], refused: TaskGroup, says: str
) -> None:
    """Messages over the grant of their own task raise an error that contains both counts."""
    granted = book(window)
    granted.on_received(accepted)
    with pytest.raises(CreditExceededError, match=says):
        granted.on_received([refused])


@pytest.mark.parametrize(
    ("window", "sent"),
    [
        (WINDOW, group(1, 8, size=1)),
        (WINDOW, group(0, 4)),
        (Amount(1000, 80), group(1, 3)),
        (Amount(1000, 1000), group(1, 2, size=1)),
    ],
    ids=["messages", "task 0", "bytes", "end of the backlog"],
)
def test_small_releases_are_saved_up(window: Amount, sent: TaskGroup) -> None:
    """A sender is notified when a quarter of the window, in messages or bytes, or its backlog is free."""
    granted = book(window, every_release=False)
    granted.on_received([sent])
    for told in (False, True):
        assert granted.on_released(sent.task, 1, sent.payload_sizes()[0]) is told
        assert [each.released_messages for each in granted.take_changes()] == [2] * told


def test_counts_what_came_and_what_is_done_with() -> None:
    """Counts cover all tasks, except messages that were refused or exceeded the credit."""
    granted = book()
    granted.on_received([group(1, 3), group(2, 2, size=1)])
    granted.on_released(1, 2, 20)
    granted.on_refused(group(2, 1, size=1))
    with pytest.raises(CreditExceededError):
        granted.on_received([group(2, 1, size=1), group(1, 9, size=1)])
    assert (granted.received_messages, granted.received_bytes) == (4, 31)
    assert (granted.released_messages, granted.released_bytes) == (2, 20)


def test_a_session_is_idle_when_every_message_is_released() -> None:
    """A session is idle only when the messages of all its tasks are released."""
    granted = book()
    idle = [granted.all_released]
    granted.on_received([group(1, 1), group(2, 2)])
    idle.append(granted.all_released)
    granted.on_released(1, 1, 10)
    granted.on_released(2, 1, 10)
    idle.append(granted.all_released)
    granted.on_released(2, 1, 10)
    assert [*idle, granted.all_released] == [True, False, False, True]


def test_larger_shares_are_told_to_a_sender_without_credit() -> None:
    """Only a sender without credit waits for a larger share."""
    granted = book()
    granted.on_received([group(1, 1)])
    assert not granted.on_share_increase()
    granted.on_received([group(1, 7)])
    assert granted.on_share_increase()
    assert [each.task for each in granted.take_changes()] == [1]


def test_forwarded_messages_need_no_credit() -> None:
    """Forwarded messages were granted credit at their entry worker, so they may exceed the window."""
    forwarded = replace(group(1, 9), path=5, entry_sequence=1)
    granted = book()
    granted.on_received([forwarded])
    assert granted.received_messages == 9


def test_watched_releases_are_granted_at_once() -> None:
    """A watched release is granted immediately, even in a large window."""
    granted = book(Amount(1000, 100_000), every_release=False)
    granted.on_received([group(1, 3), group(2, 3)])
    granted.watch_releases([1])
    granted.take_changes()
    assert granted.on_released(1, 1, 10)
    assert not granted.on_released(2, 1, 10)


def test_a_repeated_list_of_watched_tasks_may_be_longer() -> None:
    """Tasks that are watched already do not count against the limit when the sender repeats its list."""
    granted = book(Amount(1000, 100_000), every_release=False)
    last = credit.MAX_TASKS - 1
    granted.watch_releases(range(last))
    granted.watch_releases(range(last + 2))
    granted.on_received([group(last, 3), group(last + 1, 3)])
    assert granted.on_released(last, 1, 10)
    assert not granted.on_released(last + 1, 1, 10)


TOTAL = Amount(100, 1000)


def shares(sessions: int = 1) -> QueueShares:
    """Return the shares for this number of sessions."""
    made = QueueShares(TOTAL, Amount(4, 40))
    made.set_session_count(sessions)
    return made


@pytest.mark.parametrize(
    ("sessions", "left", "windows", "smallest"),
    [
        (2, [], {7: Amount(50, 500)}, Amount(50, 500)),
        # Only the shares of the same queue are reduced.
        (2, [(7, 60, 100)], {7: Amount(20, 450), 8: Amount(50, 500)}, Amount(20, 450)),
        (2, [(7, 60, 100), (8, 80, 100)], {}, Amount(10, 450)),
        # A full queue has no space, but space for one message or one byte counts.
        (1, [(7, 60, 100), (7, 50, 100), (8, 1, 1000)], {7: Amount(0, 0), 8: Amount(0, 0)}, Amount(0, 0)),
        (1, [(7, 99, 0), (8, 0, 999)], {7: Amount(4, 1000), 8: Amount(100, 40)}, Amount(4, 1000)),
        # Less than a quarter of the queue is ignored.
        (1, [(7, 24, 249)], {7: TOTAL}, TOTAL),
    ],
)
def test_what_was_left_is_taken_off_the_shares(
    sessions: int, left: list[tuple[int, int, int]], windows: dict[int, Amount], smallest: Amount
) -> None:
    """Messages of closed sessions reduce the shares; the smallest share is the fullest queue's."""
    made = shares(sessions)
    for each in left:
        made.add_orphaned(*each)
    assert {task: made.share_for(task) for task in windows} == windows
    assert made.smallest_share == smallest


@pytest.mark.parametrize(
    ("left", "releases", "window"),
    [
        ((24, 249), [(24, 249, False)], TOTAL),
        ((100, 10), [(20, 2, False), (5, 1, True)], Amount(25, 993)),
        ((100, 10), [(20, 2, False), (5, 1, True), (24, 2, False), (27, 2, True)], TOTAL),
        (
            (80, 900),
            [(1, 100, False), (1, 149, False), (1, 1, True), (24, 10, False), (1, 0, True)],
            Amount(48, 360),
        ),
    ],
)
def test_room_is_told_by_quarters(
    left: tuple[int, int], releases: list[tuple[int, int, bool]], window: Amount
) -> None:
    """Space is announced after each quarter of the queue, in messages or bytes, and for a small rest."""
    made = shares()
    made.add_orphaned(7, *left)
    assert made.reduced_share_tasks == ([7] if left[0] >= 25 else [])
    for messages, size_bytes, told in releases:
        assert made.on_released(7, messages, size_bytes) is told
    assert made.share_for(7) == window


def test_a_new_session_starts_with_what_room_there_is() -> None:
    """A new session is notified about full queues, and about space in them as soon as there is any."""
    made = shares()
    made.add_orphaned(7, 100, 10)
    book = SessionCredit(made, max_message_bytes=10, grants_every_release=False)
    assert book.initial_share == TOTAL
    assert book.all_grants() == [credit_of(7, 0, 0, 0)]
    assert made.on_released(7, 100, 10)
    assert book.on_space_freed(7)
    assert book.take_changes() == [credit_of(7, 100, 1000, 0)]
