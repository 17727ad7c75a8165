"""Where a query stands, and what its next micro-batch reads."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tuplewire.errors import ConfigError
from tuplewire.spark.offsets import (
    DataLossError,
    Held,
    Offset,
    Range,
    TaskOffset,
    check_dropped,
    check_held,
    check_there,
    initial_offset,
    next_offset,
    ranges,
    share,
    tails,
)

WORKER = 77


def held(acknowledged: int, tail: int, worker: int = WORKER, size_bytes: int | None = None) -> Held:
    """Return what a worker holds of a task, 10 bytes a message unless it says otherwise."""
    size = 10 * (tail - acknowledged) if size_bytes is None else size_bytes
    return Held("w:1", "w", worker, acknowledged, tail, size)


def at(sequence: int, worker: int = WORKER) -> TaskOffset:
    """Return a offset."""
    return TaskOffset(worker, sequence)


def test_json_comes_back() -> None:
    """What Spark keeps is read as it was written."""
    offset = Offset({1: at(5), 2: at(0, 2**63)})
    assert Offset.from_json(json.loads(json.dumps(offset.to_json()))) == offset


def test_new_tasks_begin_at_their_start() -> None:
    """A task that is not in the checkpoint begins with what nobody has acknowledged."""
    start = Offset({1: at(5)})
    now = {1: held(5, 6), 2: held(3, 9, worker=78)}
    current = start.of_tasks(now)
    assert current == Offset({1: at(5), 2: at(3, 78)})
    end = next_offset(current, now, tails(now))
    assert ranges(start, end, now) == [
        Range(1, "w:1", "w", WORKER, 5, 6),
        Range(2, "w:1", "w", 78, 3, 9),
    ]


def test_the_same_tasks_are_the_same_offset() -> None:
    """Where nothing has changed, Spark sees no change either."""
    start = Offset({1: at(5)})
    assert start.of_tasks({1: held(5, 6)}) is start


def test_a_dropped_task_goes_once_it_is_read() -> None:
    """What was read of it need not be acknowledged yet, and what another consumer has had is not missed."""
    start = Offset({1: at(5), 2: at(9)})
    check_dropped(start, {2: held(4, 9)}, [1])
    check_dropped(start, {2: held(12, 12)}, [1])
    check_dropped(start, {2: held(12, 12, worker=78)}, [1])
    check_dropped(start, {}, [1])  # no assignment has it any more


def test_a_dropped_task_with_messages_is_told() -> None:
    """The error says which, how much, and what to do."""
    start = Offset({1: at(5), 2: at(9), 3: at(1), 4: at(2)})
    now = {2: held(4, 11), 3: held(0, 1), 4: held(3, 8, worker=78)}
    with pytest.raises(
        ConfigError,
        match=r"2 of the tasks .* 7 of .*: task 2 holds 2, task 4 holds 5\..*failOnDataLoss=false",
    ):
        check_dropped(start, now, [1])


def test_a_planned_batch_of_a_task_that_is_nowhere() -> None:
    """Only a task of which it has messages matters."""
    start, end = Offset({1: at(5), 2: at(5)}), Offset({1: at(6), 2: at(5)})
    check_there(start, end, {1: held(5, 6)})
    assert ranges(start, end, {}) == []
    with pytest.raises(DataLossError, match=r"no assignment has any more: \[1\].*failOnDataLoss=false"):
        check_there(start, end, {2: held(5, 5)})


def test_first_batch_has_all_that_is_not_acknowledged() -> None:
    """It begins where the last consumer has acknowledged, and ends at the tail."""
    now = {1: held(3, 10), 2: held(0, 0)}
    start = initial_offset(now)
    end = next_offset(start, now, tails(now))
    assert ranges(start, end, now) == [Range(1, "w:1", "w", WORKER, 3, 10)]


def test_nothing_new_is_the_same_offset() -> None:
    """Spark takes an offset that differs for new data."""
    start = Offset({1: at(10)})
    now = {1: held(10, 10)}
    assert next_offset(start, now, tails(now)) is start


def test_fewer_than_the_least_wait() -> None:
    """All tasks together count, unless a queue is so full that its senders wait."""
    start = Offset({1: at(10), 2: at(0)})
    now = {1: held(10, 13), 2: held(0, 1)}
    assert next_offset(start, now, tails(now), min_messages=5) is start
    assert next_offset(start, now, tails(now), min_messages=4).offsets == tails(now)
    full = {1: now[1], 2: replace(now[2], congested=True)}
    assert next_offset(start, full, tails(full), min_messages=5).offsets == tails(full)


def test_the_latest_begins_behind_what_is_there() -> None:
    """In the tasks that are named so; in the others, everything is read."""
    now = {1: held(3, 10), 2: held(3, 10)}
    assert initial_offset(now, {2}) == Offset({1: at(3), 2: at(10)})


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
    """In proportion to what waits, and exactly up to the bound."""
    assert share(waiting, bound) == shares


def test_bytes_bound_goes_by_mean_size() -> None:
    """A micro-batch takes as many messages as about fit, and one at least."""
    now = {1: held(0, 100), 2: held(0, 100, size_bytes=0)}
    start = initial_offset(now)
    half = next_offset(start, now, tails(now), max_bytes=500)
    assert sum(each.sequence for each in half.offsets.values()) == 100
    one = next_offset(start, now, tails(now), max_bytes=1)
    assert sum(each.sequence for each in one.offsets.values()) == 1
    both = next_offset(start, now, tails(now), max_bytes=500, max_messages=30)
    assert sum(each.sequence for each in both.offsets.values()) == 30


def test_available_now_goes_no_further_than_its_target() -> None:
    """What comes after the target was taken is left."""
    start = Offset({1: at(0)})
    target = {1: at(10)}
    assert next_offset(start, {1: held(0, 25)}, target).offsets == target
    assert next_offset(Offset(target), {1: held(10, 25)}, target).offsets == target


@pytest.mark.parametrize(
    ("now", "message"),
    [
        (held(0, 10, worker=78), "has been restarted, or has moved"),
        (held(6, 10), "somebody else consumes the task"),
    ],
)
def test_loss_is_told(now: Held, message: str) -> None:
    """Another incarnation of the worker, or another consumer, is an error that says what to do."""
    start = Offset({1: at(5)})
    with pytest.raises(DataLossError, match=f"(?s){message}.*failOnDataLoss=false"):
        check_held(start, {1: now})


def test_another_worker_is_read_from_its_beginning() -> None:
    """When that is allowed, a query goes on with all that the new worker holds."""
    start = Offset({1: at(5), 2: at(5)})
    now = {1: held(0, 3, worker=78), 2: held(5, 5)}
    end = next_offset(start, now, tails(now))
    assert ranges(start, end, now) == [Range(1, "w:1", "w", 78, 0, 3)]
