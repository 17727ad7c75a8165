"""Groupings: the choice of the next task."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tuplewire.errors import ConfigError, InvalidTaskError, TopologyError
from tuplewire.grouping.grouping import Key, stable_hash
from tuplewire_topology import CustomStreamGrouping, Grouping, GroupingContext, Locality, fields, shuffle
from tuplewire_topology.running.task_router import CustomGrouping, LocalOrShuffleGrouping, PartialKeyGrouping

WORDS = [f"word-{number}" for number in range(10_000)]


def test_fields_spreads_keys_evenly() -> None:
    """Similar keys are spread evenly over the tasks."""
    counts = Counter(fields(range(4)).choose(WORDS))
    assert min(counts.values()) > 2_300
    assert max(counts.values()) < 2_700


def test_hash_is_pinned() -> None:
    """The hash is stable across releases, because one topology may run two of them."""
    assert stable_hash("AA") == 18232456866452669877


@pytest.mark.parametrize(
    ("one", "other"), [("1", 1), ("a", b"a"), (("a", "b"), ("ab", "")), (("a",), "a"), (None, "")]
)
def test_hash_tells_keys_apart(one: Key, other: Key) -> None:
    """Keys that only look equal have different hashes."""
    assert stable_hash(one) != stable_hash(other)


@pytest.mark.parametrize(
    ("one", "others"),
    [
        (1, [1.0, True, Decimal("1.00"), Fraction(2, 2), np.int64(1), np.float32(1), np.bool_(True)]),
        (0.5, [Decimal("0.5"), Fraction(1, 2), np.float16(0.5)]),
        (10**30, [Decimal(10) ** 30]),
        (math.inf, [Decimal("Infinity"), np.float64(math.inf)]),
        (("a", 0), [("a", -0.0), ("a", False)]),
    ],
)
def test_equal_keys_are_one(one: Any, others: list[Any]) -> None:
    """Equal keys have one hash, so a task that has the state of one has the state of all."""
    for other in others:
        assert one == other
        assert stable_hash(one) == stable_hash(other)
        assert fields(range(1000)).choose([one, other]) == fields(range(1000)).choose([other, one])
    assert stable_hash(0.1) != stable_hash(Decimal("0.1"))


@pytest.mark.parametrize("key", [object(), ("a", []), frozenset("a"), np.zeros(2)])
def test_fields_refuses_keys_without_one_form(key: Any) -> None:
    """A key without a portable form is an error, not a wrong task."""
    with pytest.raises(ConfigError, match="key is str, bytes, a number, None"):
        stable_hash(key)


def test_shuffle_takes_turns_across_calls() -> None:
    """The rotation continues with the next column."""
    grouping = shuffle([7, 8, 9], start=1)
    assert grouping.choose(range(2)) == [8, 9]
    assert grouping.choose(range(5)) == [7, 8, 9, 7, 8]
    assert grouping.choose([]) == []
    assert grouping.choose(range(1)) == [9]


@pytest.mark.parametrize("make", [fields, shuffle])
def test_grouping_needs_tasks(make: Callable[[list[int]], Grouping]) -> None:
    """Missing or invalid tasks are an error immediately."""
    with pytest.raises(ConfigError, match="at least one task"):
        make([])
    with pytest.raises(InvalidTaskError):
        make([1, -1])


def test_partial_key_balances_what_fields_cannot() -> None:
    """A key that dominates the stream does not overload one task."""
    keys = ["the"] * 6_000 + WORDS[:4_000]
    assert max(Counter(fields(range(4)).choose(keys)).values()) > 6_500
    assert max(Counter(PartialKeyGrouping(range(4)).choose(keys)).values()) < 3_500


def test_local_or_shuffle_stays_in_the_worker() -> None:
    """Tasks in the sender's worker take turns; without any, all tasks do."""
    near = {1: Locality.HOST, 2: Locality.WORKER, 4: Locality.WORKER}
    grouping = LocalOrShuffleGrouping(GroupingContext(range(1, 5), source=0, locality=lambda: near))
    assert grouping.choose("abcd") == [2, 4, 2, 4]
    near = {1: Locality.HOST}
    assert grouping.choose("ab") == [2, 4]
    grouping.refresh()
    assert sorted(grouping.choose("abcd")) == [1, 2, 3, 4]


class ByLength(CustomStreamGrouping):
    """Sends a word to one task for each letter."""

    def choose_tasks(self, values: tuple[Any, ...]) -> list[int]:
        return [int(task) for task in range(len(values[0]))]


def test_custom_grouping_may_choose_any_number() -> None:
    """A custom grouping may choose none, one or several tasks, but no unknown one."""
    grouping = CustomGrouping(GroupingContext(range(3), source=9), ByLength())
    assert grouping.route([("",), ("ab",), ("a",)]) == {0: [1, 2], 1: [1]}
    with pytest.raises(TopologyError, match="ByLength chose task 3; choose from"):
        grouping.route([("abcd",)])
