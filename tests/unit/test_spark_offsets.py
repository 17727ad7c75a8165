"""Where a query stands, and what its next micro-batch reads."""

from __future__ import annotations

import json

import pytest

from tuplewire.errors import ConfigError
from tuplewire.spark.offsets import (
    DataLossError,
    Held,
    Offset,
    Range,
    TaskOffset,
    check_held,
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
    offset = Offset({1: at(5), 2: at(0, 2**63)}, 1234)
    assert Offset.from_json(json.loads(json.dumps(offset.to_json())), (2, 1)) == offset


def test_other_tasks_are_refused() -> None:
    """A checkpoint of other tasks is an error that names both."""
    offset = Offset({1: at(5)}, 0).to_json()
    with pytest.raises(ConfigError, match=r"checkpoint is of tasks \[1\], .* \[1, 2\]"):
        Offset.from_json(offset, (1, 2))


def test_first_batch_has_all_that_is_not_acknowledged() -> None:
    """It begins where the last consumer has acknowledged, and ends at the tail."""
    now = {1: held(3, 10), 2: held(0, 0)}
    start = initial_offset(now)
    end = next_offset(start, now, tails(now), 1000)
    assert ranges(start, end, now) == [Range(1, "w:1", "w", WORKER, 3, 10, 1000)]


def test_nothing_new_is_the_same_offset() -> None:
    """Spark takes an offset that differs for new data."""
    start = Offset({1: at(10)}, 5)
    now = {1: held(10, 10)}
    assert next_offset(start, now, tails(now), 1000) is start


def test_no_message_is_before_the_last_was_seen() -> None:
    """A clock that is put back does not make the timestamps of a query fall."""
    start = Offset({1: at(10)}, 5000)
    now = {1: held(10, 11)}
    assert next_offset(start, now, tails(now), 1000).seen_millis == 5000


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
    half = next_offset(start, now, tails(now), 1, max_bytes=500)
    assert sum(each.sequence for each in half.offsets.values()) == 100
    one = next_offset(start, now, tails(now), 1, max_bytes=1)
    assert sum(each.sequence for each in one.offsets.values()) == 1
    both = next_offset(start, now, tails(now), 1, max_bytes=500, max_messages=30)
    assert sum(each.sequence for each in both.offsets.values()) == 30


def test_available_now_goes_no_further_than_its_target() -> None:
    """What comes after the target was taken is left."""
    start = Offset({1: at(0)}, 0)
    target = {1: at(10)}
    assert next_offset(start, {1: held(0, 25)}, target, 1).offsets == target
    assert next_offset(Offset(target, 0), {1: held(10, 25)}, target, 1).offsets == target


@pytest.mark.parametrize(
    ("now", "message"),
    [
        (held(0, 10, worker=78), "has been restarted, or has moved"),
        (held(6, 10), "somebody else consumes the task"),
    ],
)
def test_loss_is_told(now: Held, message: str) -> None:
    """Another incarnation of the worker, or another consumer, is an error that says what to do."""
    start = Offset({1: at(5)}, 0)
    with pytest.raises(DataLossError, match=f"(?s){message}.*failOnDataLoss=false"):
        check_held(start, {1: now})


def test_another_worker_is_read_from_its_beginning() -> None:
    """When that is allowed, a query goes on with all that the new worker holds."""
    start = Offset({1: at(5), 2: at(5)}, 0)
    now = {1: held(0, 3, worker=78), 2: held(5, 5)}
    end = next_offset(start, now, tails(now), 9)
    assert ranges(start, end, now) == [Range(1, "w:1", "w", 78, 0, 3, 9)]
