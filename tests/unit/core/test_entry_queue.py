"""The queue of groups: order at both ends, fields of packed groups, and memory of small groups."""

from __future__ import annotations

import tracemalloc
from dataclasses import fields

from hypothesis import given, settings
from hypothesis import strategies as st

from tuplewire.session.delivery import DeliveryLog
from tuplewire.session.entry_queue import EntryQueue, HeldEntry
from tuplewire.values.group import TaskGroup

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
    forwarded=numbers,
    entry_sequence=numbers,
    accepted_micros=numbers,
    retained_upstream=st.booleans(),
)


def plain(number: int, size: int = 1) -> TaskGroup:
    """Return a group of one message."""
    return TaskGroup(TASK, None, size.to_bytes(4, "little"), b"x" * size, entry_sequence=number)


def filled(count: int, size: int = 1) -> EntryQueue:
    """Return a queue of `count` groups of one message, with their sequences as tokens."""
    queue = EntryQueue()
    for number in range(1, count + 1):
        queue.append(HeldEntry(number, plain(number, size), number))
    return queue


def sequences(queue: EntryQueue) -> list[int]:
    """Return the sequences in a queue, and check that each entry has its own group and token."""
    found = list(queue)
    assert all(each.first == each.group.entry_sequence == each.token for each in found)
    return [each.first for each in found]


@settings(max_examples=50)
@given(st.lists(groups, min_size=1, max_size=5))
def test_a_packed_group_keeps_every_field(some: list[TaskGroup]) -> None:
    """Packing preserves every field of a group, including fields that are added later."""
    queue, first = EntryQueue(), 1
    firsts = []
    for index, group in enumerate(some * MANY):
        queue.append(HeldEntry(first, group, index))
        firsts.append(first)
        first += len(group)
    for index, group in enumerate(some * MANY):
        entry = queue.popleft()
        assert (entry.first, entry.token) == (firsts[index], index)
        assert [getattr(entry.group, name) for name in FIELDS] == [getattr(group, name) for name in FIELDS]
    assert not queue


@settings(max_examples=200)
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
                waiting.append(HeldEntry(last, plain(last, size), last))
        elif step == "take":
            for _ in range(min(count, last - cursor)):
                cursor += 1
                assert waiting.first.first == cursor
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


def test_a_group_is_cut_where_it_moves_back() -> None:
    """The first part of the group stays; the second part is moved back and marked."""
    taken, waiting = EntryQueue(), EntryQueue()
    taken.append(HeldEntry(5, TaskGroup.of(TASK, [b"a", b"b", b"c"]), None))
    taken.move_after(5, waiting, redelivered=True)
    assert [(each.first, each.group.data, each.group.redelivered) for each in taken] == [(5, b"a", False)]
    assert [(each.first, each.group.data, each.group.redelivered) for each in waiting] == [(6, b"bc", True)]


def test_many_can_be_put_in_front() -> None:
    """Entries put in front are packed as well, and keep their order."""
    queue = EntryQueue()
    for number in range(MANY, 0, -1):
        queue.appendleft(HeldEntry(number, plain(number), number))
    assert sequences(queue) == list(range(1, MANY + 1))


def test_an_iterator_sees_what_was_there() -> None:
    """An iterator returns the original entries even if another thread changes the queue."""
    queue = filled(MANY)
    held = iter(queue)
    for _ in range(MANY):
        queue.popleft()
    assert [each.first for each in held] == list(range(1, MANY + 1))


def test_the_memory_of_small_messages() -> None:
    """A message of one byte uses the memory stated in docs/how-to/tune.md, waiting or delivered."""
    log, tokens = DeliveryLog(), [object() for _ in range(50)]
    tracemalloc.start()
    try:
        for number in range(10_000):
            log.append(plain(number), tokens[number % 50])
        waiting = tracemalloc.get_traced_memory()[0]
        log.take(10**9, 10**9, 10**9)
        log.progress(0, log.taken)
        delivered = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert waiting < 64 * 1.2 * 10_000
    assert delivered < 64 * 1.2 * 10_000
