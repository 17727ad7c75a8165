"""Windows over tuples: their times and their contents."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any

import pytest

from tuplewire.errors import MessageError, TopologyError
from tuplewire_topology import Stream, Tuple, TupleWindow, Window
from tuplewire_topology.authoring.tuples import TupleSource
from tuplewire_topology.authoring.windows import CountWindows, TimeWindows

SOURCE = TupleSource("numbers", 1, Stream("number"))
NO_LAGS: tuple[Any, ...] = (math.nan, math.inf, -1.0, "60", timedelta(seconds=60), Decimal(60))
NO_LENGTHS = (0.0, *NO_LAGS)


def tuples(numbers: Iterable[float]) -> list[Tuple]:
    """Return a tuple for each number."""
    return [Tuple([number], SOURCE) for number in numbers]


def numbers(messages: Iterable[Tuple]) -> list[Any]:
    """Return the numbers of tuples."""
    return [message["number"] for message in messages]


def shown(window: TupleWindow) -> tuple[list[Any], list[Any], list[Any]]:
    """Return the numbers of a window: all, new, expired."""
    return numbers(window), numbers(window.new), numbers(window.expired)


def counted(window: Window, count: int) -> list[tuple[list[Any], list[Any], list[Any]]]:
    """Return the windows of this number of tuples, by count."""
    windows = CountWindows(window)
    found = [shown(each) for message in tuples(range(count)) for each in windows.add(message)]
    return found + [shown(each) for each in windows.flush()]


def test_by_count() -> None:
    """Tumbling windows share no tuples, but the last one is filled up; sliding ones follow every two."""
    assert counted(Window.count(3), 7) == [
        ([0, 1, 2], [0, 1, 2], []),
        ([3, 4, 5], [3, 4, 5], [0, 1, 2]),
        ([4, 5, 6], [6], [3]),
    ]
    assert counted(Window.count(4, 2), 6) == [
        ([0, 1], [0, 1], []),
        ([0, 1, 2, 3], [2, 3], []),
        ([2, 3, 4, 5], [4, 5], [0, 1]),
    ]


def test_by_time() -> None:
    """Windows end at multiples of the step, exclude their start and include their end."""
    windows = TimeWindows(Window.seconds(10, 5, timestamp="number"))
    for message in tuples([1, 12, 5, 6, 40]):
        assert windows.add(message, message["number"])
    assert [(each.start, each.end, *shown(each)) for each in windows.advance(39)] == [
        (-5, 5, [1, 5], [1, 5], []),
        (0, 10, [1, 5, 6], [6], []),
        (5, 15, [6, 12], [12], [1, 5]),
        (10, 20, [12], [], [6]),
    ]
    assert [shown(each) for each in windows.flush()] == [([40], [40], [12])]
    assert not list(windows.flush())


@pytest.mark.parametrize("seed", range(20))
def test_windows_are_those_of_the_definition(seed: int) -> None:
    """For any input order, each window contains exactly the tuples of its interval."""
    chance = random.Random(seed)
    every = chance.choice([1, 2.5, 10])
    length = every * chance.choice([1, 1.5, 4])
    windows = TimeWindows(Window.seconds(length, every, timestamp="number"))
    taken: list[float] = []
    found: list[TupleWindow] = []
    now = 0.0
    for message in tuples(chance.randrange(400) / 4 for _ in range(200)):
        if windows.add(message, message["number"]):
            taken.append(message["number"])
        now += chance.choice([0, 0, 0.5, 3])
        found += windows.advance(now)
    found += windows.flush()
    for window in found:
        assert window.end is not None
        assert window.start == window.end - length
        assert window.end % every == 0
        assert numbers(window) == sorted(each for each in taken if window.start < each <= window.end)
    assert sorted(number for each in found for number in numbers(each.new)) == sorted(taken)
    ends = [each.end for each in found]
    assert ends == sorted(set(ends))  # type: ignore[type-var]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Window.count(0),
        lambda: Window.count(2, 3),
        lambda: Window.count(2.5),  # type: ignore[arg-type]
        lambda: Window.seconds(10, 3),
        lambda: Window.seconds(10, lag=1),
        lambda: Window.seconds(10, late_stream="late"),
        *(partial(Window.seconds, number) for number in NO_LENGTHS),
        *(partial(Window.seconds, 10.0, number) for number in NO_LENGTHS),
        *(partial(Window.seconds, 1.0, timestamp="at", lag=number) for number in NO_LAGS),
    ],
)
def test_what_makes_no_window_is_refused(wrong: Any) -> None:
    """An invalid window is refused at construction."""
    with pytest.raises(TopologyError):
        wrong()


NO_TIMES = [10**30, 1e300, math.inf, -math.inf, math.nan, -(10**400), "5", None, timedelta(seconds=5), 5j, []]


@pytest.mark.parametrize("at", NO_TIMES, ids=lambda at: str(at)[:12])
def test_what_is_no_time(at: Any) -> None:
    """An invalid or infinite time is an error that names it, and no tuple waits forever."""
    windows = TimeWindows(Window.seconds(10.0, 1.0, timestamp="at"))
    with pytest.raises(MessageError, match=r"is a number of seconds"):
        windows.add(object(), at)  # type: ignore[arg-type]
    assert not list(windows.advance(math.inf))


@pytest.mark.parametrize("every", [1e-6, 0.001, 1.0, 3600.0])
def test_times_that_go_on(every: float) -> None:
    """Up to the largest valid time, each window ends later than the previous one."""
    windows = TimeWindows(Window.seconds(every, every, timestamp="at"))
    for at in (-1.7e9, 0, Fraction(1, 3), 1.7e9):
        windows.add(object(), at)  # type: ignore[arg-type]
    assert len(list(windows.flush())) == 4


@pytest.mark.parametrize("every", [0.1, 0.3, 0.7, 1.1])
def test_steps_that_are_no_binary_fractions(every: float) -> None:
    """Each tuple enters the window of its step, also after a gap, and sliding windows have whole steps."""
    windows, sliding = (TimeWindows(Window.seconds(steps * every, every)) for steps in (1, 3))
    for step in [*range(1, 2000, 3), 1_000_000_003]:
        for each in (windows, sliding):
            assert each.add(object(), step * every)  # type: ignore[arg-type]
        assert len(list(windows.advance(step * every))) == 1
        assert [len(each) for each in sliding.advance((step + 2) * every)] == [1, 1, 1]
