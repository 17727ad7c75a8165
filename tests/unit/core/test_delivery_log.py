"""A task's receive queue: delivery, acknowledgement, rewind and removal."""

from __future__ import annotations

import pytest

from tuplewire.session.delivery import Delivery, DeliveryLog, Done
from tuplewire.session.pieces import wire_bytes
from tuplewire.values.group import TaskGroup

PLENTY = 1_000_000


def filled(*groups: str) -> DeliveryLog:
    """Return a log of groups with one message per letter; each group's text is its token."""
    log = DeliveryLog()
    for text in groups:
        log.append(TaskGroup.of(1, [letter.encode() for letter in text]), text)
    return log


def taken(
    log: DeliveryLog, credit: int = PLENTY, credit_bytes: int = PLENTY, max_bytes: int = PLENTY
) -> list[tuple[int, str]]:
    """Take messages, and return (first sequence, messages) for each delivery."""
    return [shown(delivery) for delivery in log.take(credit, credit_bytes, max_bytes)]


def shown(delivery: Delivery) -> tuple[int, str]:
    """Return (first sequence, messages) of a delivery."""
    return delivery.first_sequence, delivery.group.data.decode()


# --- take -----------------------------------------------------------------------------------------


def test_messages_are_numbered_from_one() -> None:
    """Sequences count messages within the task, across groups."""
    log = filled("ab", "cde")
    assert (log.tail, log.queued_messages, log.queued_bytes) == (5, 5, 5)
    assert taken(log) == [(1, "ab"), (3, "cde")]


def test_takes_each_message_once() -> None:
    """Delivered messages are not taken again; later messages are."""
    log = filled("ab")
    waiting = [log.waiting]
    taken(log)
    waiting.append(log.waiting)
    assert taken(log) == []
    log.append(TaskGroup.of(1, [b"c"]))
    waiting.append(log.waiting)
    assert taken(log) == [(3, "c")]
    assert waiting == [True, False, True]


def test_credit_in_messages() -> None:
    """Message credit is the last sequence to deliver, even within a group; repeating it adds nothing."""
    log = filled("abc", "de")
    assert taken(log, credit=2) == [(1, "ab")]
    assert taken(log, credit=2) == []
    assert taken(log, credit=4) == [(3, "c"), (4, "d")]


def test_credit_in_bytes() -> None:
    """A message may start while fewer bytes than the credit are in flight."""
    log = DeliveryLog()
    log.append(TaskGroup.of(1, [b"", b"x" * 5, b"y" * 5, b"z" * 5]))
    assert taken(log, credit_bytes=0) == []
    assert taken(log, credit_bytes=6) == [(1, "xxxxxyyyyy")]
    assert taken(log, credit_bytes=10) == []
    assert taken(log, credit_bytes=11) == [(4, "zzzzz")]


def test_arrived_bytes_no_longer_count() -> None:
    """After the consumer reports receipt, only later messages count against its byte credit."""
    log = filled("aaaa", "bbbb", "cccc")
    assert taken(log, credit_bytes=8) == [(1, "aaaa"), (5, "bbbb")]
    log.progress(acknowledged=0, received=4)
    assert taken(log, credit_bytes=4) == []
    assert taken(log, credit_bytes=6) == [(9, "cc")]


def test_frames_are_bounded() -> None:
    """One call returns about `max_bytes`; a single larger message is returned alone."""
    log = DeliveryLog()
    log.append(TaskGroup.of(1, [b"x" * 10] * 100))
    log.append(TaskGroup.of(1, [b"y" * 500]))
    sizes = []
    while deliveries := log.take(PLENTY, PLENTY, 200):
        sizes.append(sum(len(each.group.data) for each in deliveries))
    assert sum(sizes) == 1500
    assert max(sizes[:-1]) <= 200


def test_empty_messages_are_bounded_too() -> None:
    """Lengths count against `max_bytes`, so empty messages do not make a frame of unlimited size."""
    log = DeliveryLog()
    log.append(TaskGroup.of(1, [b""] * 10_000))
    for _ in range(1_000):
        log.append(TaskGroup.of(1, [b""]))
    count = 0
    while deliveries := log.take(PLENTY, PLENTY, 400):
        count += sum(len(each.group) for each in deliveries)
        assert sum(len(each.group.lengths) for each in deliveries) <= 800
        assert len(deliveries) <= 10
    assert count == 11_000


# --- progress -------------------------------------------------------------------------------------


def test_acknowledged_messages_are_done() -> None:
    """Each group is reported as done once, with its token, in order."""
    log = filled("ab", "cde", "f")
    taken(log)
    assert log.progress(5, 5) == [Done("ab", 2, 2), Done("cde", 3, 3)]
    assert (log.queued_messages, log.queued_bytes) == (1, 1)
    assert log.progress(5, 5) == log.progress(1, 1) == []


def test_acknowledged_in_the_middle_of_a_group() -> None:
    """Part of a group can be done; the rest is reported later with the same token."""
    log = filled("abcde")
    taken(log)
    assert log.progress(2, 5) == [Done("abcde", 2, 2)]
    assert log.progress(3, 5) == [Done("abcde", 1, 1)]
    assert (log.queued_messages, log.queued_bytes) == (2, 2)
    assert sum(done.messages for done in log.progress(5, 5)) == 2
    assert log.queued_bytes == 0


def test_acknowledged_beyond_what_was_handed_out() -> None:
    """A consumer cannot acknowledge, or have received, messages that were not delivered to it."""
    log = filled("ab", "cd")
    taken(log, credit=3)
    assert sum(done.messages for done in log.progress(99, 99)) == 3
    assert (log.acknowledged, log.received) == (3, 3)
    assert taken(log) == [(4, "d")]


# --- rewind and removal --------------------------------------------------------------------------


def test_resuming_consumer_goes_on_after_what_it_received() -> None:
    """A resuming consumer continues after its last received message; no message is marked redelivered."""
    log = filled("abc", "def", "g")
    taken(log, credit=6)
    log.progress(1, 3)
    log.rewind(received=4)
    assert log.taken == 4
    deliveries = log.take(PLENTY, PLENTY, PLENTY)
    assert [shown(delivery) for delivery in deliveries] == [(5, "ef"), (7, "g")]
    assert not any(delivery.group.redelivered for delivery in deliveries)


def test_next_consumer_gets_what_was_not_acknowledged() -> None:
    """The next consumer gets all unacknowledged messages in order; the ones delivered before are marked."""
    log = filled("abc", "de", "f")
    taken(log, credit=5)
    log.progress(2, 4)
    log.rewind()
    deliveries = log.take(PLENTY, PLENTY, PLENTY)
    assert [(*shown(delivery), delivery.group.redelivered) for delivery in deliveries] == [
        (3, "c", True),
        (4, "de", True),
        (6, "f", False),
    ]


def test_rewinding_frees_the_bytes_on_the_way() -> None:
    """Messages in flight to a previous consumer do not count against the next consumer's credit."""
    log = filled("aaaa", "bbbb", "cccc")
    taken(log, credit_bytes=8)
    log.rewind()
    assert taken(log, credit_bytes=8) == [(1, "aaaa"), (5, "bbbb")]
    log.progress(acknowledged=0, received=8)
    assert taken(log, credit_bytes=2) == [(9, "cc")]


@pytest.mark.parametrize(
    ("credit", "acknowledged", "received", "left"), [(PLENTY, 3, 1, (4, "d")), (2, 0, 99, (3, "cd"))]
)
def test_rewinding_elsewhere(credit: int, acknowledged: int, received: int, left: tuple[int, str]) -> None:
    """For any reported position, acknowledged messages are not redelivered and no message is lost."""
    log = filled("abcd")
    taken(log, credit=credit)
    log.progress(acknowledged, acknowledged)
    log.rewind(received=received)
    assert log.taken == left[0] - 1
    assert taken(log) == [left]


def test_remove_takes_out_what_is_left() -> None:
    """Removal returns a task's unacknowledged messages in order, with their tokens, and empties the log."""
    log = filled("abc", "de", "f")
    taken(log, credit=4)
    log.progress(1, 4)
    left = log.remove()
    assert b"".join(group.data for group, _ in left) == b"bcdef"
    assert [token for _, token in left][-2:] == ["de", "f"]
    assert (log.queued_messages, log.queued_bytes) == (0, 0)
    assert taken(log) == []
    log.append(TaskGroup.of(1, [b"g"]))
    assert taken(log) == [(7, "g")]


def test_the_age_is_that_of_the_oldest_message() -> None:
    """Delivered messages count; messages without a time, or with a future time, have age 0."""
    log = DeliveryLog()
    assert log.age(10_000_000) == 0
    log.append(TaskGroup.of(1, [b"a"]).accepted(1_000_000))
    log.append(TaskGroup.of(1, [b"b"]))
    assert log.age(3_000_000) == 2
    taken(log)
    assert log.age(3_000_000) == 2
    assert log.age(500_000) == 0
    log.progress(1, 1)
    assert log.age(3_000_000) == 0


def test_what_may_have_come_before_is_marked() -> None:
    """A queue decides for each group, by its token, if it is marked redelivered."""
    log = filled("a", "b")
    marked = log.take(PLENTY, PLENTY, PLENTY, lambda group, of: group.data == b"b" and of == "b")
    assert [each.group.redelivered for each in marked] == [False, True]


def test_the_oldest_message_stands_alone() -> None:
    """The oldest message is returned alone; rejecting it leaves the rest of its group in the queue."""
    log = filled("abc")
    assert log.oldest() is None
    taken(log)
    found = log.oldest()
    assert found is not None
    assert found[0].data == b"a"
    assert log.progress(1, 3) == [Done("abc", 1, 1)]
    assert log.queued_messages == 2


def test_a_reader_gets_no_more_than_it_asks_for() -> None:
    """A read ends with the group that fills the byte limit exactly."""
    log = filled("ab", "cd", "ef")
    first = log.read(0, 6, PLENTY)[0].group
    assert [shown(each) for each in log.read(0, 6, wire_bytes(first))] == [(1, "ab")]
    assert [shown(each) for each in log.read(0, 6, wire_bytes(first) + 1)] == [(1, "ab"), (3, "c")]
