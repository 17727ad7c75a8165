"""The laws of groupings, for any input."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuplewire.grouping.grouping import (
    FieldsGrouping,
    Grouping,
    GroupingContext,
    Key,
    Locality,
    SingleGrouping,
    shuffle,
)
from tuplewire.grouping.load_aware import LoadAwareShuffle
from tuplewire_topology.running.task_router import (
    AllGrouping,
    GlobalGrouping,
    LocalOrShuffleGrouping,
    PartialKeyGrouping,
)

numbers = st.booleans() | st.integers() | st.floats(allow_nan=False)
keys = st.none() | numbers | st.text(max_size=3) | st.binary(max_size=3)
columns = st.lists(st.lists(keys | st.tuples(keys, keys), max_size=30), max_size=5)
tasks = st.sets(st.integers(0, 2**31 - 1), min_size=1, max_size=40).map(list)
loads = st.dictionaries(st.integers(0, 40), st.floats(), max_size=40)
localities = st.dictionaries(st.integers(0, 40), st.sampled_from(Locality))

SINGLE: list[Callable[[GroupingContext], SingleGrouping]] = [
    lambda context: shuffle(context.tasks, context.source),
    lambda context: FieldsGrouping(context.tasks),
    lambda context: PartialKeyGrouping(context.tasks),
    lambda context: GlobalGrouping(context.tasks),
    LocalOrShuffleGrouping,
    LoadAwareShuffle,
]


def context_of(chosen: list[int], load: dict[int, float], near: dict[int, Locality]) -> GroupingContext:
    """Return a context. Loads and localities are drawn by a task's position, not by its id."""
    return GroupingContext(
        chosen,
        source=7,
        locality=lambda: {chosen[place]: tier for place, tier in near.items() if place < len(chosen)},
        loads=lambda: {chosen[place]: value for place, value in load.items() if place < len(chosen)},
    )


@pytest.mark.parametrize("make", SINGLE)
@given(tasks, columns, loads, localities)
def test_every_message_has_one_task(
    make: Callable[[GroupingContext], SingleGrouping],
    chosen: list[int],
    batches: list[list[Key]],
    load: dict[int, float],
    near: dict[int, Locality],
) -> None:
    """Each message is routed to exactly one task, for any loads and localities; order is kept."""
    grouping = make(context_of(chosen, load, near))
    for batch in batches:
        routes = grouping.route(batch)
        assert sorted(position for positions in routes.values() for position in positions) == list(
            range(len(batch))
        )
        assert all(list(positions) == sorted(positions) for positions in routes.values())
        assert set(routes) <= set(chosen)
        grouping.refresh()


@given(tasks, columns)
def test_all_leaves_nobody_out(chosen: list[int], batches: list[list[Key]]) -> None:
    """Each message is routed to each task, once."""
    grouping: Grouping = AllGrouping(chosen)
    for batch in batches:
        routes = grouping.route(batch)
        assert set(routes) == (set(chosen) if batch else set())
        assert all(list(positions) == list(range(len(batch))) for positions in routes.values())


@given(tasks, columns, st.integers(0, 100))
def test_shuffle_is_even(chosen: list[int], batches: list[list[Key]], start: int) -> None:
    """The tasks' shares differ by at most one, for any division of the messages into columns."""
    grouping = shuffle(chosen, start)
    counts = Counter(dict.fromkeys(chosen, 0))
    for batch in batches:
        counts.update(grouping.choose(batch))
        assert max(counts.values()) - min(counts.values()) <= 1


@given(tasks, columns)
def test_fields_depends_on_the_key_alone(chosen: list[int], batches: list[list[Key]]) -> None:
    """Two senders agree on every key, regardless of the order of keys."""
    one, other = FieldsGrouping(chosen), FieldsGrouping(chosen)
    seen: dict[Key, int] = {}
    for batch in batches:
        seen.update(zip(batch, one.choose(batch), strict=True))
    for batch in reversed(batches):
        assert other.choose(batch[::-1]) == [seen[key] for key in batch[::-1]]


@given(tasks, loads, localities, st.integers(1, 20))
def test_load_aware_shares_add_up(
    chosen: list[int], load: dict[int, float], near: dict[int, Locality], refreshes: int
) -> None:
    """The shares add up to one, and no share is negative."""
    grouping = LoadAwareShuffle(context_of(chosen, load, near))
    for _ in range(refreshes):
        grouping.refresh()
        assert sum(grouping.shares.values()) == pytest.approx(1)
        assert min(grouping.shares.values()) >= 0
