"""The offsets of a query, and the range of its next micro-batch."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

import pytest

from tuplewire.errors import ConfigError
from tuplewire.spark.entry_runs import EntryRuns, filter_redeliverable, merge
from tuplewire.spark.offsets import (
    DataLossError,
    Offset,
    PreviousOwner,
    QueueState,
    TaskOffset,
    add_entry_sequences,
    check_not_consumed,
    check_removed,
    check_still_assigned,
    divide_limit,
    end_offsets,
    initial_offset,
    loss_error,
    next_offset,
    ranges,
    task_ends,
)

WORKER = 77


def held(acknowledged: int, tail: int, worker: int = WORKER, size_bytes: int | None = None) -> QueueState:
    """Return a worker's state of a task, with 10 bytes per message by default."""
    size = 10 * (tail - acknowledged) if size_bytes is None else size_bytes
    return QueueState("w", "w:1", worker, acknowledged, tail, size)


def at(sequence: int, worker: int = WORKER) -> TaskOffset:
    """Return an offset."""
    return TaskOffset(worker, sequence, "w:1")


def runs(first: int, *each: tuple[int, int, int]) -> EntryRuns:
    """Return runs of (number of messages, entry worker, entry sequence)."""
    return EntryRuns(first, 0, each)


def planned(start: Offset, now: dict[int, QueueState], numbers: dict[int, EntryRuns]) -> Offset:
    """Return the end of the next micro-batch, as a reader plans it."""
    current = start.relocate_to(now)
    return add_entry_sequences(current, next_offset(current, now), numbers)


def test_json_comes_back() -> None:
    """An offset survives a round trip through JSON."""
    moved = TaskOffset(7, 5, "w:1", {2**32 - 1: 7}, {3: 4}, 8, 0)
    offset = Offset({1: at(5), 2: at(0, 2**63), 3: moved})
    assert Offset.from_json(json.loads(json.dumps(offset.to_json()))) == offset


def test_new_tasks_begin_at_their_start() -> None:
    """A task that is not in the checkpoint starts at its first unacknowledged message."""
    start = Offset({1: at(5)})
    now = {1: held(5, 6), 2: held(3, 9, worker=78)}
    current = start.relocate_to(now)
    assert {task: (each.worker, each.sequence) for task, each in current.offsets.items()} == {
        1: (WORKER, 5),
        2: (78, 3),
    }
    numbers = {1: runs(6, (1, 9, 6)), 2: runs(4, (6, 9, 1))}
    assert [
        (each.task, each.start, each.end.sequence, each.end.messages, each.after)
        for each in ranges(start, planned(start, now, numbers), now, numbers)
    ] == [(1, 5, 6, 1, {}), (2, 3, 9, 6, {})]


def test_a_dropped_task_goes_once_it_is_read() -> None:
    """A task can be dropped when all of its messages are read, or acknowledged by another consumer."""
    start = Offset({1: at(5), 2: at(9)})
    check_removed(start, {2: held(4, 9)})
    check_removed(start, {2: held(12, 12)})
    check_removed(start, {2: held(12, 12, worker=78)})
    check_removed(start, {2: held(0, 0, worker=78)})
    check_removed(start, {})  # no longer assigned


def test_a_dropped_task_with_messages_is_told() -> None:
    """The error contains the tasks, the numbers of messages and the fix."""
    start = Offset({1: at(5), 2: at(9), 3: at(1), 4: at(2), 5: at(9)})
    now = {2: held(4, 11), 3: held(0, 1), 4: held(3, 8, worker=78), 5: held(0, 1, worker=78)}
    with pytest.raises(
        ConfigError,
        match=r"3 of the tasks .* 8 of .*: task 2 holds 2, task 4 holds 5, task 5 holds 1\..*failOnDataLoss",
    ):
        check_removed(start, now)


def test_a_planned_batch_of_a_task_that_is_nowhere() -> None:
    """An unassigned task is an error only if the batch contains messages of it."""
    start, end = Offset({1: at(5), 2: at(5)}), Offset({1: at(6), 2: at(5)})
    check_still_assigned(task_ends(start, end), {1: held(5, 6)})
    assert ranges(start, end, {}, {}) == []
    with pytest.raises(DataLossError, match=r"task 1 is no longer assigned.*failOnDataLoss=false"):
        check_still_assigned(task_ends(start, end), {2: held(5, 5)})


def test_fewer_than_the_least_wait() -> None:
    """The minimum is for all tasks together, and is ignored if a queue is congested."""
    start = Offset({1: at(10), 2: at(0)})
    now = {1: held(10, 13), 2: held(0, 1)}
    assert next_offset(start, now, min_messages=5) is start
    assert next_offset(start, now, min_messages=4).offsets == end_offsets(now)
    full = {1: now[1], 2: replace(now[2], congested=True)}
    assert next_offset(start, full, min_messages=5).offsets == end_offsets(full)


@pytest.mark.parametrize(
    ("waiting", "bound", "shares"),
    [
        ({1: 5, 2: 5}, 20, {1: 5, 2: 5}),
        ({1: 100, 2: 300}, 40, {1: 10, 2: 30}),
        ({1: 1, 2: 999}, 10, {1: 0, 2: 10}),
        ({1: 2, 2: 2, 3: 2}, 4, {1: 2, 2: 1, 3: 1}),
        ({1: 0, 2: 7}, 1, {1: 0, 2: 1}),
    ],
)
def test_bound_is_shared(waiting: dict[int, int], bound: int, shares: dict[int, int]) -> None:
    """The limit is shared in proportion to the waiting messages, and used completely."""
    assert divide_limit(waiting, bound) == shares


@pytest.mark.parametrize(
    ("now", "bounds", "messages"),
    [
        ({1: held(0, 100), 2: held(0, 100, size_bytes=0)}, {"max_bytes": 500}, 100),
        ({1: held(0, 100), 2: held(0, 100, size_bytes=0)}, {"max_bytes": 1}, 1),
        ({1: held(0, 100), 2: held(0, 100, size_bytes=0)}, {"max_bytes": 500, "max_messages": 30}, 30),
        ({1: held(0, 1), 2: held(0, 1)}, {"max_bytes": 15}, 1),
        *(
            ({1: held(0, 10)}, {"max_bytes": most}, messages)
            for most, messages in ((100, 10), (99, 9), (50, 5), (1, 1))
        ),
    ],
)
def test_bytes_bound_goes_by_mean_size(
    now: dict[int, QueueState], bounds: dict[str, Any], messages: int
) -> None:
    """A micro-batch has about as many messages as fit, and at least one."""
    end = next_offset(initial_offset(now), now, **bounds)
    assert sum(each.sequence for each in end.offsets.values()) == messages


def test_another_consumer_is_told() -> None:
    """Messages that another consumer has acknowledged are an error with the fix, except at the tail."""
    start = Offset({1: at(5)})
    check_not_consumed(start, {1: held(5, 5)})
    with pytest.raises(DataLossError):
        check_not_consumed(Offset({1: at(6)}), {1: held(5, 5)})
    with pytest.raises(DataLossError, match=r"(?s)another program consumes the task.*failOnDataLoss=false"):
        check_not_consumed(start, {1: held(6, 10)})


def test_a_task_that_has_moved_is_read_by_entry_workers() -> None:
    """Entries that were read before the move are skipped at the new owner, in any order."""
    at_first = {1: held(0, 10)}
    end = planned(initial_offset(at_first), at_first, {1: runs(1, (4, 100, 1), (6, 200, 7))})
    assert end.offsets[1].entries == {100: 4, 200: 12}
    now = {1: replace(held(0, 9, worker=78), start=0)}
    numbers = {1: runs(1, (2, 100, 5), (1, 100, 4), (4, 200, 11), (2, 300, 1))}
    later = planned(end, now, numbers)
    (wanted,) = ranges(end, later, now, numbers)
    assert (wanted.start, wanted.end.sequence, wanted.end.messages) == (0, 9, 6)
    assert numbers[1].unread_ranges(0, 9, wanted.after) == [(1, 2), (6, 9)]
    assert later.offsets[1].before == {}, "all that was read has come"


def test_what_was_read_may_come_late() -> None:
    """Entries that were read are remembered until a later entry of their worker arrives."""
    start = Offset({1: TaskOffset(WORKER, 9, entries={100: 4, 200: 12})})
    now = {1: held(0, 2, worker=78)}
    one = planned(start, now, {1: runs(1, (2, 300, 1))})
    assert (one.offsets[1].before, one.offsets[1].messages) == ({100: 4, 200: 12}, 2)
    now = {1: held(2, 6, worker=78)}
    numbers = {1: runs(3, (2, 100, 3), (2, 200, 11))}
    two = planned(one, now, numbers)
    assert (two.offsets[1].before, two.offsets[1].messages) == ({}, 0)
    assert two.offsets[1].first == 2
    assert ranges(one, two, now, numbers)[0].end.messages == 0


@pytest.mark.parametrize("now", [held(0, 9), held(20, 29, worker=78)])
def test_a_first_batch_is_repeated_with_its_messages(now: QueueState) -> None:
    """A new initial offset, after later messages or at another worker, does not change a planned batch."""
    start = initial_offset({1: held(0, 5)}, latest={1})
    numbers = {1: runs(1, (8, 100, 1))}
    end = planned(start, {1: held(0, 8)}, numbers)
    repeated = initial_offset({1: now}, latest={1})
    assert repeated != start
    (wanted,) = ranges(repeated, end, {1: now}, numbers)
    assert (wanted.start, wanted.end.sequence, wanted.end.messages) == (5, 8, 3)
    assert (wanted.runs is None) == (now.worker != WORKER)


def test_a_task_that_comes_back() -> None:
    """A returning worker continues its numbers, and its earlier messages are found by them."""
    start = Offset({1: TaskOffset(WORKER, 9, entries={100: 9})})
    now = {1: replace(held(12, 20), start=12)}
    numbers = {1: runs(13, (8, 100, 7))}
    (wanted,) = ranges(start, planned(start, now, numbers), now, numbers)
    assert (wanted.start, wanted.end.sequence, wanted.end.messages) == (12, 20, 5)
    check_not_consumed(start.relocate_to(now), now)
    with pytest.raises(DataLossError, match="another program"):
        check_not_consumed(start.relocate_to(now), {1: replace(held(13, 20), start=12)})


def test_a_planned_batch_whose_task_moves_is_found_whole() -> None:
    """A batch is located by its previous and its last entries after its task moves."""
    start = Offset({1: TaskOffset(WORKER, 3, entries={100: 3})})
    now = {1: held(0, 8)}
    numbers = {1: runs(1, (5, 100, 1), (3, 200, 1))}
    (wanted,) = ranges(start, planned(start, now, numbers), {1: held(0, 12, worker=78)}, {})
    assert (wanted.runs, wanted.end.messages) == (None, 5)
    there = runs(1, (4, 300, 1), (7, 100, 1), (5, 200, 1))
    assert there.unread_ranges(0, sys.maxsize, wanted.after, wanted.end.entries) == [(8, 9), (12, 14)]
    partly = merge(wanted.after, numbers[1].last_sequences(6))
    assert there.unread_ranges(0, sys.maxsize, partly, wanted.end.entries) == [(13, 14)]


def test_last_sequences_stay_short() -> None:
    """Only the latest of the inactive entry workers are remembered."""
    assert list(filter_redeliverable(dict.fromkeys(range(500), 1), {})) == list(range(400, 500))


def test_loss_is_told_with_how_much() -> None:
    """The error contains the worker, the number of lost messages and the fix."""
    offset = TaskOffset(WORKER, 9, "w:1")
    died = loss_error(3, offset, PreviousOwner(exited_uncleanly=True), 7)
    assert "task 3 was at a worker (w:1) that restarted or failed" in str(died)
    assert "7 unread messages and any that arrived after the last poll" in str(died)
    dropped = loss_error(3, offset, PreviousOwner(5), 7)
    assert "up to 5 messages" in str(dropped)
    assert all("w:1" in str(each) and "failOnDataLoss=false" in str(each) for each in (died, dropped))
    assert not PreviousOwner().has_lost


@pytest.mark.parametrize(
    ("end", "spans", "last"),
    [
        (0, [], {}),
        (1, [(1, 1)], {8: 11}),
        (4, [(1, 4)], {8: 14}),
        (5, [(1, 5)], {8: 15}),
        (6, [(1, 6)], {8: 15, 9: 1}),
        (7, [(1, 7)], {8: 15, 9: 2}),
        (9, [(1, 7)], {8: 15, 9: 2}),
    ],
)
def test_a_read_ends_at_its_last_message(
    end: int, spans: list[tuple[int, int]], last: dict[int, int]
) -> None:
    """A read ends exactly at its last message, within a run or at its end."""
    numbers = runs(1, (5, 8, 11), (2, 9, 1))
    assert numbers.unread_ranges(0, end, {}) == spans
    assert numbers.last_sequences(end) == last


def test_a_start_counts_for_its_own_incarnation() -> None:
    """A restarted worker numbers its messages from the start, so an old offset does not apply."""
    now = {1: held(0, 25)}
    assert next_offset(Offset({1: at(10)}), now, max_messages=5).offsets[1].sequence == 15
    assert next_offset(Offset({1: at(1000, worker=WORKER - 1)}), now).offsets[1].sequence == 25


def test_a_task_without_messages_does_no_harm() -> None:
    """With a limit in bytes, an empty task keeps its offset and causes no division by zero."""
    rests = TaskOffset(WORKER, 5, "w:1", {7: 3})
    end = next_offset(Offset({1: at(5), 2: rests}), {1: held(5, 9), 2: held(5, 5)}, max_bytes=20)
    assert end.offsets[1].sequence == 7
    assert end.offsets[2] is rests


def test_a_batch_with_nothing_to_read_is_the_start_itself() -> None:
    """An empty batch ends at its start, because Spark takes any difference for new data."""
    start = Offset({1: at(5)})
    assert next_offset(start, {1: held(5, 5), 2: held(0, 0)}) is start
