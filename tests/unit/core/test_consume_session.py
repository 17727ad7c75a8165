"""The consumer's end of a Recv session: duplicates, acknowledgements, credit and rejections."""

from __future__ import annotations

import pytest
from helpers.cursors import answer_of, cursor_of

from tuplewire.errors import MalformedError
from tuplewire.session.consume import ArrivedBatch, ConsumeSession, Delivery, RejectedMessage
from tuplewire.values.group import TaskGroup
from tuplewire.wire import messaging_pb2 as pb

WORKER, PREFETCH = 5, 10


def opened(*tasks: int, size_bytes: int = 100) -> ConsumeSession:
    """Return a session that is connected to a worker, at the start of each task."""
    session = ConsumeSession(tasks, PREFETCH, size_bytes)
    session.on_connected(WORKER, [(task, 0) for task in tasks])
    return session


def arrive(session: ConsumeSession, first: int, text: str, task: int = 1) -> ArrivedBatch:
    """Simulate the arrival of one message for each letter."""
    return session.receive([Delivery(first, TaskGroup.of(task, [letter.encode() for letter in text]))])


def text_of(arrived: ArrivedBatch) -> str:
    """Return the letters of the messages that are new."""
    return b"".join(group.data for group in arrived.groups).decode()


def test_duplicates_are_trimmed() -> None:
    """Messages that have already arrived are omitted, even within a group with new messages."""
    session = opened(1)
    arrive(session, 1, "abc")
    assert text_of(arrive(session, 1, "abc")) == ""
    again = arrive(session, 2, "bcde")
    assert text_of(again) == "de"
    assert again.deliveries[0].first_sequence == 4


def test_a_gap_or_a_foreign_task_is_an_error() -> None:
    """A missing message and messages of a task without a subscription are detected immediately."""
    session = opened(1)
    arrive(session, 1, "abc")
    with pytest.raises(MalformedError, match="task 1: message 5 follows message 3: a gap"):
        arrive(session, 5, "e")
    with pytest.raises(MalformedError, match="received messages for task 2, which is not subscribed"):
        arrive(session, 1, "a", task=2)


def test_room_that_was_void_is_told() -> None:
    """The worker is notified of the credit that void messages have freed."""
    session = opened(1, 2, 3, size_bytes=4)
    arrive(session, 1, "abcd")
    arrive(session, 1, "abcd", task=2)
    assert [cursor.credit_bytes for cursor in session.take_all_cursors()] == [0, 0, 4]
    session.on_connected(WORKER, [(1, 9), (2, 4), (3, 2)])
    assert session.take_changed_cursors() == [cursor_of(1, 9, 9, 19, 4)]
    session.on_connected(WORKER + 1, [(1, 0), (2, 0), (3, 0)])
    assert session.take_changed_cursors() == [cursor_of(2, 0, 0, 10, 4)]


def test_what_the_worker_asks_for_is_told_at_once() -> None:
    """A batch requests an immediate update if the worker did, or if half of the known credit is used."""
    session = opened(1)
    first = session.receive([Delivery(1, TaskGroup.of(1, [b"x"]))], ack_requested=True)
    found = [first, *(arrive(session, number, "x") for number in range(2, 7))]
    assert [each.ack_requested for each in found] == [True, False, False, False, True, True]
    for each in found:
        session.acknowledge(each)
    session.take_changed_cursors()
    assert not arrive(session, 7, "x").ack_requested


def cursor(session: ConsumeSession) -> pb.TaskCursor:
    """Return the task's cursor."""
    (found,) = session.take_all_cursors()
    return found


def test_rejections_without_an_answer_take_up_room() -> None:
    """Rejections without an answer use up credit, which bounds their number."""
    session = opened(1)
    for number in range(1, 5):
        arrived = arrive(session, number, "x")
        session.acknowledge(arrived, [RejectedMessage(0, 0.0, "", blocks_task=False)])
        assert cursor(session).credit_sequence == number + PREFETCH - number
    session.apply_answers([answer_of(1, 4, 4)])
    assert cursor(session).credit_sequence == 4 + PREFETCH


@pytest.mark.parametrize(
    ("count", "sizes"),
    [
        (0, [[], [3, 3, 3]]),
        (2, [[2], [1, 3, 3]]),
        (3, [[3], [3, 3]]),
        (4, [[3, 1], [2, 3]]),
        (9, [[3, 3, 3], []]),
    ],
)
def test_a_batch_is_split(count: int, sizes: list[list[int]]) -> None:
    """The requested number of messages is taken from the first groups; the others stay in order."""
    group = TaskGroup.of(1, [b"a", b"b", b"c"])
    parts = opened(1).receive([Delivery(1, group), Delivery(4, group), Delivery(7, group)]).split(count)
    assert [[len(each.group) for each in part.deliveries] for part in parts] == sizes
    payloads = [payload for part in parts for each in part.deliveries for payload in each.group.payloads()]
    assert payloads == [b"a", b"b", b"c"] * 3


@pytest.mark.parametrize("index", [0, 1, 2, 3])
def test_a_rejected_message_is_found_in_its_group(index: int) -> None:
    """The index counts across groups, and only the messages before it are acknowledged."""
    session = opened(1)
    groups = [TaskGroup.of(1, [b"a", b"b"]), TaskGroup.of(1, [b"c", b"d"])]
    arrived = session.receive([Delivery(1, groups[0]), Delivery(3, groups[1])])
    session.acknowledge(arrived, [RejectedMessage(index, 0.0, "no \udcff", blocks_task=True)])
    found = cursor(session)
    assert (found.acknowledged_sequence, found.rejections[-1].sequence) == (index, index + 1)
    assert found.rejections[-1].reason == r"no \udcff"  # as UTF-8 cannot encode the character


def test_a_task_is_added_between_two_streams() -> None:
    """An added task starts at the worker's sequence; the others continue, with their acknowledgements."""
    session = opened(1)
    last = arrive(session, 1, "abc")
    session.set_tasks([1, 2])
    assert [cursor.task for cursor in session.take_all_cursors()] == [1, 2]
    session.on_connected(WORKER, [(1, 3), (2, 40)])
    assert text_of(arrive(session, 41, "x", task=2)) == "x"
    assert session.acknowledge(last)
    assert [(cursor.task, cursor.acknowledged_sequence) for cursor in session.take_changed_cursors()] == [
        (1, 3)
    ]


def test_a_removed_task_is_not_in_requests_and_continues_later() -> None:
    """A task that has moved away and returns continues at its position: nothing is delivered twice."""
    session = opened(1, 2)
    arrive(session, 1, "ab", task=2)
    session.set_tasks([1])
    assert [cursor.task for cursor in session.take_all_cursors()] == [1]
    session.on_connected(WORKER, [(1, 0)])
    session.mark_all_changed()
    assert [cursor.task for cursor in session.take_changed_cursors()] == [1]
    session.set_tasks([1, 2])
    assert {each.task: each.received_sequence for each in session.take_all_cursors()} == {1: 0, 2: 2}
    session.on_connected(WORKER, [(1, 0), (2, 2)])
    assert text_of(arrive(session, 2, "bc", task=2)) == "c"


def test_parts_of_a_batch_name_their_session() -> None:
    """The session stays with every part of a batch, because only it can apply the acknowledgement."""
    session = opened(1)
    arrived = arrive(session, 1, "abc")
    assert arrived.session is session
    assert [part.session for part in arrived.split(1)] == [session, session]
    assert arrived.without([9]).session is session
    assert [part.session for part in arrived.each_delivery()] == [session]
