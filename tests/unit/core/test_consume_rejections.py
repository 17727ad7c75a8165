"""Rejections in a consumer's window: void messages and remaining credit."""

from __future__ import annotations

import pytest
from helpers.cursors import answer_of

from tuplewire.session.consume import Arrived, ConsumeWindow, Rejected
from tuplewire.session.delivery import Delivery
from tuplewire.values.group import TaskGroup
from tuplewire.wire import messaging_pb2 as pb

WORKER, PREFETCH = 5, 10


def opened() -> ConsumeWindow:
    """Return a window that is connected to a worker, at the start of task 1."""
    window = ConsumeWindow([1], PREFETCH, 1000)
    window.opened(WORKER, [(1, 0)])
    return window


def arrive(window: ConsumeWindow, first: int, text: str) -> Arrived:
    """Simulate the arrival of one message for each letter."""
    return window.arrived([Delivery(first, TaskGroup.of(1, [letter.encode() for letter in text]))])


def cursor(window: ConsumeWindow) -> pb.TaskCursor:
    """Return the task's cursor."""
    (found,) = window.all()
    return found


@pytest.mark.parametrize("answered", [False, True])
def test_messages_after_a_rejection_that_waits_are_void(*, answered: bool) -> None:
    """Messages after a waiting rejection are void, also after the answer: they are delivered again."""
    window = opened()
    first, second = arrive(window, 1, "ab"), arrive(window, 3, "cd")
    assert window.acknowledge(first, [Rejected(1, 0.0, "", wait=True)])
    assert window.waiting() == {1}
    if answered:
        window.answered([answer_of(1, 1, 1)])
        assert window.waiting() == set()
    assert not window.acknowledge(second)
    assert cursor(window).acknowledged == 1


def test_messages_that_arrive_before_the_answer_are_void() -> None:
    """Messages that the worker sent before it received the rejection are void: it delivers them again."""
    window = opened()
    window.acknowledge(arrive(window, 1, "ab"), [Rejected(0, 0.0, "", wait=True)])
    early = arrive(window, 1, "ab")
    window.answered([answer_of(1, 1, 0)])
    assert not window.acknowledge(early)
    assert cursor(window).acknowledged == 0


def test_rejections_without_an_answer_take_up_room() -> None:
    """Rejections without an answer use up credit, which bounds their number."""
    window = opened()
    for number in range(1, 5):
        arrived = arrive(window, number, "x")
        window.acknowledge(arrived, [Rejected(0, 0.0, "", wait=False)])
        assert cursor(window).credit == number + PREFETCH - number
    window.answered([answer_of(1, 4, 4)])
    assert cursor(window).credit == 4 + PREFETCH


def test_the_first_messages_of_a_batch() -> None:
    """The requested number of messages is taken from the first groups."""
    window = opened()
    group = TaskGroup.of(1, [b"a", b"b", b"c"])
    arrived = window.arrived([Delivery(1, group), Delivery(4, group), Delivery(7, group)])
    assert [len(each.group) for each in arrived.first(2).deliveries] == [2]
    assert [len(each.group) for each in arrived.first(3).deliveries] == [3]
    assert [len(each.group) for each in arrived.first(4).deliveries] == [3, 1]
    assert arrived.first(0).deliveries == ()


def test_messages_of_another_incarnation_are_void() -> None:
    """A batch from another worker incarnation is void, even if the sequences are equal."""
    window = opened()
    arrived = arrive(window, 1, "ab")
    window.all()
    window.opened(WORKER + 1, [(1, 2)])
    assert not window.acknowledge(arrived)


@pytest.mark.parametrize("index", [0, 1, 2, 3])
def test_a_rejected_message_is_found_in_its_group(index: int) -> None:
    """The index counts across groups, and only the messages before it are acknowledged."""
    window = opened()
    groups = [TaskGroup.of(1, [b"a", b"b"]), TaskGroup.of(1, [b"c", b"d"])]
    arrived = window.arrived([Delivery(1, groups[0]), Delivery(3, groups[1])])
    window.acknowledge(arrived, [Rejected(index, 0.0, "", wait=True)])
    found = cursor(window)
    assert (found.acknowledged, found.rejections[-1].sequence) == (index, index + 1)


def test_a_consumer_that_resumes_reports_the_credit_of_settled_rejections() -> None:
    """A consumer that rejected all messages must report new credit on resume, or delivery would stop."""
    window = opened()
    arrived = arrive(window, 1, "abcdefghij")
    window.acknowledge(arrived, [Rejected(index, 0, "", wait=False) for index in range(PREFETCH)])
    assert cursor(window).credit == PREFETCH
    window.opened(WORKER, [(1, PREFETCH)])
    assert [each.credit for each in window.take_moved()] == [2 * PREFETCH]
