"""Groupings: the choice of the next task."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tuplewire.errors import ConfigError, InvalidTaskError
from tuplewire.topology import Grouping, fields, shuffle
from tuplewire.topology.grouping import Key, stable_hash

WORDS = [f"word-{number}" for number in range(10_000)]


def test_fields_sends_equal_keys_to_one_task() -> None:
    """Each key has one task, however often and in whatever company it comes."""
    first = dict(zip(WORDS, fields([3, 4, 5]).choose(WORDS), strict=True))
    backwards = list(reversed(WORDS))
    assert dict(zip(backwards, fields([3, 4, 5]).choose(backwards), strict=True)) == first
    assert set(first.values()) == {3, 4, 5}


def test_fields_spreads_keys_evenly() -> None:
    """Similar keys still get tasks in about equal numbers."""
    counts = Counter(fields(range(4)).choose(WORDS))
    assert min(counts.values()) > 2_300
    assert max(counts.values()) < 2_700


def test_fields_agrees_between_processes() -> None:
    """Another process, with another seed for hash(), chooses the same tasks."""
    program = (
        "from tuplewire.topology import fields\n"
        "print(fields(range(1000)).choose(['AA', b'AA', 7, None, ('a', 'b')]))"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert answers == {f"{fields(range(1000)).choose(['AA', b'AA', 7, None, ('a', 'b')])}\n"}


def test_hash_is_pinned() -> None:
    """The hash does not change between releases: two of them may run in one topology."""
    assert stable_hash("AA") == 18232456866452669877


@pytest.mark.parametrize(
    ("one", "other"), [("1", 1), ("a", b"a"), (("a", "b"), ("ab", "")), (("a",), "a"), (None, "")]
)
def test_hash_tells_keys_apart(one: Key, other: Key) -> None:
    """Keys that only look alike have different hashes."""
    assert stable_hash(one) != stable_hash(other)


@pytest.mark.parametrize("key", [1.5, True, object(), ("a", [])])
def test_fields_refuses_keys_without_one_form(key: Any) -> None:
    """A key whose equality and form differ between processes is an error, not a wrong task."""
    with pytest.raises(ConfigError, match="key is str, bytes, int, None"):
        stable_hash(key)


def test_shuffle_takes_turns_across_calls() -> None:
    """The turn goes on from one column to the next."""
    grouping = shuffle([7, 8, 9], start=1)
    assert grouping.choose(range(2)) == [8, 9]
    assert grouping.choose(range(5)) == [7, 8, 9, 7, 8]
    assert grouping.choose([]) == []
    assert grouping.choose(range(1)) == [9]


@pytest.mark.parametrize("make", [fields, shuffle])
def test_grouping_needs_tasks(make: Callable[[list[int]], Grouping]) -> None:
    """No task to choose from, or an impossible one, is an error at once."""
    with pytest.raises(ConfigError, match="at least one task"):
        make([])
    with pytest.raises(InvalidTaskError):
        make([1, -1])
