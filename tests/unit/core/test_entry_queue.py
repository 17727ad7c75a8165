"""A task's receive queue: groups in order, memory of small groups, delivery, acknowledgement and rewind."""

from __future__ import annotations

import tracemalloc
from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuplewire.session.consume import Delivery
from tuplewire.values.group import TaskGroup
from tuplewire_service.worker.delivery import AckedGroup, DeliveryLog
from tuplewire_service.worker.entry_queue import EntryQueue, QueueEntry

TASK = 7
RUN = 64
MANY = 5 * RUN
FIELDS = [field.name for field in fields(TaskGroup)]
numbers = st.integers(0, 2**64 - 1)

groups = st.builds(
    lambda column, headers, source, **others: TaskGroup(
        TASK,
        source,
        b"".join(len(each).to_bytes(4, "little") for each in column),
        b"".join(column),
        header_lengths=b"".join(len(headers).to_bytes(4, "little") for _ in column) if headers else b"",
        header_data=headers * len(column),
        **others,
    ),
    st.lists(st.binary(max_size=3), min_size=1, max_size=3),
    st.binary(max_size=2),
    st.none() | st.integers(0, 2**31 - 1),
    redelivered=st.booleans(),
    path=numbers,
    entry_sequence=numbers,
    accepted_micros=numbers,
    retained_upstream=st.booleans(),
)


def plain(number: int, size: int = 1) -> TaskGroup:
    """Return a group of one message."""
    return TaskGroup(TASK, None, size.to_bytes(4, "little"), b"x" * size, entry_sequence=number)


def filled(count: int, size: int = 1) -> EntryQueue:
    """Return a queue of `count` groups of one message, with their sequences as inbound sessions."""
    queue = EntryQueue()
    for number in range(1, count + 1):
        queue.append(QueueEntry(number, plain(number, size), number))
    return queue


def sequences(queue: EntryQueue) -> list[int]:
    """Return the sequences in a queue, and check that each entry has its own group and inbound session."""
    found = list(queue)
    assert all(each.first_sequence == each.group.entry_sequence == each.inbound for each in found)
    return [each.first_sequence for each in found]


@settings(max_examples=50)
@given(st.lists(groups, min_size=1, max_size=5))
def test_a_packed_group_keeps_every_field(some: list[TaskGroup]) -> None:
    """Packing preserves every field of a group, including fields that are added later."""
    queue, first = EntryQueue(), 1
    firsts = []
    for index, group in enumerate(some * MANY):
        queue.append(QueueEntry(first, group, index))
        firsts.append(first)
        first += len(group)
    for index, group in enumerate(some * MANY):
        entry = queue.popleft()
        assert (entry.first_sequence, entry.inbound) == (firsts[index], index)
        assert [getattr(entry.group, name) for name in FIELDS] == [getattr(group, name) for name in FIELDS]
    assert not queue


@given(
    st.lists(st.tuples(st.sampled_from(["add", "take", "take back"]), st.integers(1, 3 * RUN)), max_size=30),
    st.sampled_from([1, 2000]),
)
def test_order(steps: list[tuple[str, int]], size: int) -> None:
    """Messages that move back and forth between two queues stay in order, without duplicates."""
    waiting, taken = EntryQueue(), EntryQueue()
    last = cursor = 0
    for step, count in steps:
        if step == "add":
            for _ in range(count):
                last += 1
                waiting.append(QueueEntry(last, plain(last, size), last))
        elif step == "take":
            for _ in range(min(count, last - cursor)):
                cursor += 1
                assert waiting.first.first_sequence == cursor
                taken.append(waiting.popleft())
        else:
            cursor = max(0, cursor - count)
            taken.move_after(cursor, waiting, redelivered=False)
        assert sequences(taken) == list(range(1, cursor + 1))
        assert sequences(waiting) == list(range(cursor + 1, last + 1))
        assert (bool(taken), bool(waiting)) == (cursor > 0, last > cursor)


def test_what_moves_back_is_marked() -> None:
    """All entries after the sequence are marked, packed or not, and no earlier entries."""
    for size in (1, 2000):
        taken, waiting = filled(MANY, size), EntryQueue()
        taken.move_after(10, waiting, redelivered=True)
        assert [each.group.redelivered for each in taken] == [False] * 10
        assert [each.group.redelivered for each in waiting] == [True] * (MANY - 10)


def test_many_can_be_put_in_front() -> None:
    """Entries put in front are packed as well, and keep their order."""
    queue = EntryQueue()
    for number in range(MANY, 0, -1):
        queue.appendleft(QueueEntry(number, plain(number), number))
    assert sequences(queue) == list(range(1, MANY + 1))


def test_an_iterator_sees_what_was_there() -> None:
    """An iterator returns the original entries even if another thread changes the queue."""
    queue = filled(MANY)
    held = iter(queue)
    for _ in range(MANY):
        queue.popleft()
    assert [each.first_sequence for each in held] == list(range(1, MANY + 1))


def test_the_memory_of_small_messages() -> None:
    """A message of one byte uses the memory stated in docs/how-to/tune.md, waiting or delivered."""
    log, sessions = DeliveryLog(), [object() for _ in range(50)]
    tracemalloc.start()
    try:
        for number in range(10_000):
            log.append(plain(number), sessions[number % 50])
        waiting = tracemalloc.get_traced_memory()[0]
        log.take(10**9, 10**9, 10**9)
        log.apply_progress(0, log.last_taken)
        delivered = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert waiting < 64 * 1.2 * 10_000
    assert delivered < 64 * 1.2 * 10_000


PLENTY = 1_000_000


def log_of(*groups: str) -> DeliveryLog:
    """Return a log of groups with one message per letter; each group's text is its inbound session."""
    log = DeliveryLog()
    for text in groups:
        log.append(TaskGroup.of(1, [letter.encode() for letter in text]), text)
    return log


def taken(log: DeliveryLog, credit: int = PLENTY, credit_bytes: int = PLENTY) -> list[tuple[int, str]]:
    """Take messages, and return (first sequence, messages) for each delivery."""
    return [shown(delivery) for delivery in log.take(credit, credit_bytes, PLENTY)]


def shown(delivery: Delivery) -> tuple[int, str]:
    """Return (first sequence, messages) of a delivery."""
    return delivery.first_sequence, delivery.group.data.decode()


def test_arrived_bytes_no_longer_count() -> None:
    """After the consumer reports receipt, only later messages count against its byte credit."""
    log = log_of("aaaa", "bbbb", "cccc")
    assert taken(log, credit_bytes=8) == [(1, "aaaa"), (5, "bbbb")]
    log.apply_progress(acknowledged=0, received=4)
    assert taken(log, credit_bytes=4) == []
    assert taken(log, credit_bytes=6) == [(9, "cc")]


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


@pytest.mark.parametrize(
    ("received", "expected"),
    [(4, [(5, "ef", False), (7, "g", False)]), (None, [(3, "c", True), (4, "def", True), (7, "g", False)])],
    ids=["the same consumer", "another one"],
)
def test_a_consumer_goes_on(received: int | None, expected: list[tuple[int, str, bool]]) -> None:
    """A resuming consumer continues after its last message; another one gets all again, marked."""
    log = log_of("abc", "def", "g")
    taken(log, credit=6)
    log.apply_progress(2, 3)
    log.rewind(received=received)
    assert log.last_taken == expected[0][0] - 1
    found = [(*shown(each), each.group.redelivered) for each in log.take(PLENTY, PLENTY, PLENTY)]
    assert found == expected


def test_the_age_is_that_of_the_oldest_message() -> None:
    """Delivered messages count; messages without a time, or with a future time, have age 0."""
    log = DeliveryLog()
    assert log.oldest_age(10_000_000) == 0
    log.append(TaskGroup.of(1, [b"a"]).with_default_time(1_000_000))
    log.append(TaskGroup.of(1, [b"b"]))
    assert log.oldest_age(3_000_000) == 2
    taken(log)
    assert log.oldest_age(3_000_000) == 2
    assert log.oldest_age(500_000) == 0
    log.apply_progress(1, 1)
    assert log.oldest_age(3_000_000) == 0


def test_what_may_have_come_before_is_marked() -> None:
    """A queue decides for each group, by its inbound session, if it is marked redelivered."""
    log = log_of("a", "b")
    marked = log.take(PLENTY, PLENTY, PLENTY, lambda group, of: group.data == b"b" and of == "b")
    assert [each.group.redelivered for each in marked] == [False, True]


def test_the_oldest_message_stands_alone() -> None:
    """The oldest message is returned alone; rejecting it leaves the rest of its group in the queue."""
    log = log_of("abc")
    assert log.split_oldest() is None
    taken(log)
    found = log.split_oldest()
    assert found is not None
    assert found[0].data == b"a"
    assert log.apply_progress(1, 3) == [AckedGroup("abc", 1, 1)]
    assert log.queued_messages == 2


def test_unretained_messages_are_counted_down() -> None:
    """An acknowledged message cannot be lost and no longer counts as unkept."""
    log = DeliveryLog()
    log.append(TaskGroup.of(1, [b"a", b"b"]), None)
    assert log.unretained_messages == 2
    log.take(10, PLENTY, PLENTY)
    log.apply_progress(2, 2)
    assert log.unretained_messages == 0
