"""Tasks spread over workers: balanced, stable, and with as few moves as possible."""

from __future__ import annotations

from collections import Counter
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from tuplewire.membership.spread import fill, spread

WORKERS = ["a", "b", "c", "d", "e"]
LOST = "z"
"""A worker that holds tasks, and gets none."""

workers_of = st.lists(st.sampled_from(WORKERS), unique=True, max_size=5)
held_of = st.dictionaries(st.integers(0, 30), st.sampled_from([*WORKERS, LOST]), max_size=20)
tasks_of = st.sets(st.integers(0, 30), max_size=20)


def moves(before: dict[int, str], after: dict[int, str]) -> int:
    """Count the tasks that move from one worker to another."""
    return sum(task in before and before[task] != worker for task, worker in after.items())


@given(tasks_of, workers_of, held_of)
def test_everybody_has_as_many_or_one_more(tasks: set[int], workers: list[str], held: dict[int, str]) -> None:
    """Every task has one of the allowed workers; their numbers of tasks differ by one at most."""
    placed = spread(tasks, workers, held)
    assert placed.keys() == (tasks if workers else set())
    counts = Counter(dict.fromkeys(workers, 0) | Counter(placed.values()))
    assert counts.keys() == set(workers)
    assert not workers or max(counts.values()) - min(counts.values()) <= 1


@given(st.sets(st.integers(0, 5), max_size=6), st.data())
def test_no_fewer_moves_would_do(tasks: set[int], data: st.DataObject) -> None:
    """No other balanced placement moves fewer tasks; all placements are tried."""
    workers = WORKERS[:3]
    held = {task: data.draw(st.sampled_from([*workers, LOST])) for task in tasks}
    fewest = min(
        moves(held, placed)
        for chosen in product(workers, repeat=len(tasks))
        for placed in [dict(zip(sorted(tasks), chosen, strict=True))]
        for counts in [Counter(dict.fromkeys(workers, 0) | Counter(chosen))]
        if max(counts.values()) - min(counts.values()) <= 1
    )
    assert moves(held, spread(tasks, workers, held)) == fewest


@given(tasks_of, workers_of, held_of)
def test_fill_moves_nothing(tasks: set[int], workers: list[str], held: dict[int, str]) -> None:
    """Only tasks without a worker are assigned, each to one of the workers with the fewest."""
    placed = fill(tasks, workers, held)
    assert {task: placed[task] for task in tasks & held.keys()} == {
        task: held[task] for task in tasks & held.keys()
    }
    given_away = placed.keys() - held.keys()
    assert given_away == (tasks - held.keys() if workers else set())
    counts = Counter(placed.values())
    for worker in {placed[task] for task in given_away}:
        assert counts[worker] <= 1 + min(counts[each] for each in workers)


@given(tasks_of, workers_of.filter(bool), held_of, tasks_of)
def test_what_is_pinned_stays(
    tasks: set[int], workers: list[str], held: dict[int, str], pinned: set[int]
) -> None:
    """Pinned tasks stay; a worker with two tasks more than another has only pinned ones."""
    placed = spread(tasks, workers, held, pinned)
    assert placed.keys() == tasks
    bound = {task for task in pinned & tasks if held.get(task) in workers}
    assert all(placed[task] == held[task] for task in bound)
    counts = Counter(dict.fromkeys(workers, 0) | Counter(placed.values()))
    for task in tasks - bound:
        assert counts[placed[task]] <= min(counts.values()) + 1
