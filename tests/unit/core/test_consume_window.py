"""The consumer's end of a Recv session: duplicates, acknowledgements and credit."""

from __future__ import annotations

import pytest
from helpers.cursors import cursor_of

from tuplewire.errors import MalformedError
from tuplewire.session.consume import Arrived, ConsumeWindow, Rejected
from tuplewire.session.delivery import Delivery
from tuplewire.values.group import TaskGroup

WORKER = 5


def opened(*tasks: int, messages: int = 10, size_bytes: int = 100) -> ConsumeWindow:
    """Return a window that is connected to a worker, at the start of each task."""
    window = ConsumeWindow(tasks, messages, size_bytes)
    window.opened(WORKER, [(task, 0) for task in tasks])
    return window


def arrive(window: ConsumeWindow, first: int, text: str, task: int = 1) -> Arrived:
    """Simulate the arrival of one message for each letter."""
    group = TaskGroup.of(task, [letter.encode() for letter in text])
    return window.arrived([Delivery(first, group)])


def text_of(arrived: Arrived) -> str:
    """Return the letters of the messages that are new."""
    return b"".join(group.data for group in arrived.groups).decode()


def test_duplicates_are_trimmed() -> None:
    """Messages that have already arrived are omitted, even within a group with new messages."""
    window = opened(1)
    arrive(window, 1, "abc")
    assert text_of(arrive(window, 1, "abc")) == ""
    again = arrive(window, 2, "bcde")
    assert text_of(again) == "de"
    assert again.deliveries[0].first_sequence == 4


def test_a_gap_is_an_error() -> None:
    """A missing message is detected immediately."""
    window = opened(1)
    arrive(window, 1, "abc")
    with pytest.raises(MalformedError, match="task 1: message 5 came after message 3"):
        arrive(window, 5, "e")


def test_a_foreign_task_is_an_error() -> None:
    """Messages of a task without a subscription raise an error."""
    with pytest.raises(MalformedError, match="task 2 came, which is not subscribed"):
        arrive(opened(1), 1, "a", task=2)


def test_acknowledging_moves_the_cursor() -> None:
    """A cursor contains the acknowledged and received sequences, and the credit."""
    window = opened(1)
    first = arrive(window, 1, "abc")
    arrive(window, 4, "de")
    assert window.acknowledge(first)
    assert window.take_moved() == [cursor_of(1, acknowledged=3, received=5, credit=13, credit_bytes=98)]
    assert window.take_moved() == []


def test_only_moved_cursors_are_told() -> None:
    """An update contains only the cursors that moved; a subscription contains all of them."""
    window = opened(1, 2)
    window.acknowledge(arrive(window, 1, "a", task=2))
    assert [cursor.task for cursor in window.take_moved()] == [2]
    assert [cursor.task for cursor in window.all()] == [1, 2]


def test_acknowledging_again_or_out_of_order() -> None:
    """A cursor never decreases: acknowledging a batch includes all earlier batches."""
    window = opened(1)
    first, second = arrive(window, 1, "ab"), arrive(window, 3, "cd")
    window.acknowledge(second)
    window.acknowledge(second)
    window.acknowledge(first)
    assert window.all() == [cursor_of(1, 4, 4, 14, 100)]


def test_room_is_never_negative() -> None:
    """If the last message exceeds the prefetch bytes, the credit is zero, not negative."""
    window = opened(1, size_bytes=4)
    window.arrived([Delivery(1, TaskGroup.of(1, [b"x" * 9]))])
    assert window.all()[0].credit_bytes == 0


def test_starts_where_the_worker_stands() -> None:
    """A new consumer continues at the position of the previous one."""
    window = ConsumeWindow([1], 10, 100)
    window.opened(WORKER, [(1, 7)])
    assert window.all() == [cursor_of(1, 7, 7, 17, 100)]
    assert text_of(arrive(window, 8, "h")) == "h"


def test_resuming_keeps_what_has_arrived() -> None:
    """After a reconnect, the worker continues after the last message, and acknowledgements stay valid."""
    window = opened(1)
    before = arrive(window, 1, "abc")
    window.opened(WORKER, [(1, 3)])
    assert window.acknowledge(before)
    assert text_of(arrive(window, 3, "cd")) == "d"
    assert window.all()[0].acknowledged == 3


def test_acknowledgement_of_a_dead_workers_batch_is_void() -> None:
    """A batch of a failed worker does not acknowledge messages of its successor."""
    window = opened(1)
    before = arrive(window, 1, "abc")
    window.opened(WORKER + 1, [(1, 0)])
    window.take_moved()
    assert not window.acknowledge(before)
    assert window.take_moved() == []
    assert text_of(arrive(window, 1, "abc")) == "abc"
    assert window.all() == [cursor_of(1, 0, 3, 10, 97)]


@pytest.mark.parametrize("start", [1, 6])
def test_another_consumer_had_the_task_meanwhile(start: int) -> None:
    """The window follows the worker to another position, and the held messages are void."""
    window = opened(1, 2)
    held, other = arrive(window, 1, "abc"), arrive(window, 1, "xyz", task=2)
    window.opened(WORKER, [(1, start), (2, 3)])
    assert not window.acknowledge(held)
    assert window.acknowledge(other)
    assert window.all() == [cursor_of(1, start, start, start + 10, 100), cursor_of(2, 3, 3, 13, 100)]
    assert text_of(arrive(window, start + 1, "h")) == "h"


def test_room_that_was_void_is_told() -> None:
    """The worker is notified of the credit that void messages have freed."""
    window = opened(1, 2, 3, size_bytes=4)
    arrive(window, 1, "abcd")
    arrive(window, 1, "abcd", task=2)
    assert [cursor.credit_bytes for cursor in window.all()] == [0, 0, 4]
    window.opened(WORKER, [(1, 9), (2, 4), (3, 2)])
    assert window.take_moved() == [cursor_of(1, 9, 9, 19, 4)]
    window.opened(WORKER + 1, [(1, 0), (2, 0), (3, 0)])
    assert window.take_moved() == [cursor_of(2, 0, 0, 10, 4)]


def test_acknowledging_while_the_stream_opens() -> None:
    """An acknowledgement made between the subscription and the worker's answer is sent after the answer."""
    window = opened(1)
    before = arrive(window, 1, "abc")
    assert window.all()[0].acknowledged == 0
    window.acknowledge(before)
    window.opened(WORKER, [(1, 3)])
    assert [cursor.acknowledged for cursor in window.take_moved()] == [3]


def test_what_the_worker_asks_for_is_told_at_once() -> None:
    """A batch requests an immediate update if the worker did, or if half of the known credit is used."""
    window = opened(1)
    group = TaskGroup.of(1, [b"x"])
    asked = [window.arrived([Delivery(1, group)], ack_requested=True).ack_requested]
    asked += [arrive(window, number, "x").ack_requested for number in range(2, 7)]
    assert asked == [True, False, False, False, True, True]
    for sequence in range(1, 7):
        window.acknowledge(Arrived(1, (Delivery(sequence, group),)))
    window.take_moved()
    assert not arrive(window, 7, "x").ack_requested


def test_half_of_the_bytes_are_told_of_at_once() -> None:
    """Credit in bytes counts like credit in messages."""
    window = opened(1, size_bytes=4)
    assert [arrive(window, number, "x").ack_requested for number in range(1, 4)] == [False, True, True]


def test_what_subscribing_says_is_not_said_again() -> None:
    """After a subscription has sent all cursors, no update is pending."""
    window = opened(1, 2)
    window.acknowledge(arrive(window, 1, "abc"))
    assert [cursor.task for cursor in window.all()] == [1, 2]
    assert window.take_moved() == []


def test_a_message_that_waits_holds_back_those_after_it() -> None:
    """A rejected message that keeps its place is not acknowledged; earlier messages are."""
    window = opened(1)
    arrived = arrive(window, 1, "abcd")
    window.acknowledge(arrived, [Rejected(2, 0.0, "", wait=True)])
    (cursor,) = window.take_moved()
    assert cursor.acknowledged == 2
