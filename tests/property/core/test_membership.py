"""Tasks spread over workers, and a registry while workers arrive, drain, die, restart and are lost."""

from __future__ import annotations

from collections import Counter
from itertools import product

from helpers.members import TOPOLOGY, World
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tuplewire.membership.member_status import Phase
from tuplewire.membership.registry import Registry
from tuplewire.membership.spread import fill, rebalance
from tuplewire.wire import control_pb2

TASKS = frozenset(range(11))
NUMBERS = st.integers(1, 6)


def placed(assignment: control_pb2.Assignment | None) -> dict[int, str]:
    """Return the address of each task's worker."""
    workers = assignment.workers if assignment is not None else ()
    return {task: worker.address for worker in workers for task in worker.tasks}


class Memberships(RuleBasedStateMachine):
    """One driver after the other, and the workers of one topology."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.registry = self._registry()
        self.highest = 0
        self.moved: set[int] = set()
        """Tasks that this driver has moved since the last time at rest."""

    def _registry(self) -> Registry:
        return Registry(TOPOLOGY, TASKS, expire_seconds=3.0)

    @rule(number=NUMBERS)
    def arrive(self, number: int) -> None:
        """Add an executor with a worker, or restart a worker at its address."""
        address = f"10.0.0.{number}:6700"
        if address not in self.world.workers:
            self.world.add(number)
        elif not self.world.workers[address].alive:
            self.world.workers[address].restart()
        self.world.wanted[address] = ""

    @rule(number=NUMBERS)
    def lose_executor(self, number: int) -> None:
        """Remove an executor; its worker may keep running."""
        self.world.wanted.pop(f"10.0.0.{number}:6700", None)

    @rule(number=NUMBERS, how=st.sampled_from(["drains", "dies", "restarts"]))
    def end(self, number: int, how: str) -> None:
        """Stop or restart a worker, or start its drain."""
        worker = self.world.workers.get(f"10.0.0.{number}:6700")
        if worker is None:
            return
        if how == "restarts":
            worker.restart()
        else:
            worker.draining |= how == "drains"
            worker.alive &= how != "dies"

    @rule(number=NUMBERS, moving=st.integers(0, 2))
    def move(self, number: int, moving: int) -> None:
        """Set the number of tasks that are leaving a worker, if the worker has ever had an assignment."""
        worker = self.world.workers.get(f"10.0.0.{number}:6700")
        if worker is not None and worker.assignment is not None:
            worker.moving = moving

    @rule()
    def new_driver(self) -> None:
        """Replace the driver by another program."""
        self.registry = self._registry()
        self.moved.clear()
        self.highest = 0  # it may not know the versions of its predecessor

    @rule(lost=st.frozensets(NUMBERS))
    def look(self, lost: frozenset[int]) -> None:
        """Run one round of the driver; some of its assignments do not arrive."""
        before, phases = placed(self.registry.current), self._phases()
        if self._at_rest():
            self.moved.clear()
        issued = self.world.round(self.registry, frozenset(f"10.0.0.{number}:6700" for number in lost))
        if issued is None:
            return
        assert issued.version > self.highest, "a version comes twice"
        self.highest = issued.version
        after, now = placed(issued), self._phases()
        counts = Counter(task for worker in issued.workers for task in worker.tasks)
        assert max(counts.values(), default=1) == 1, "a task is at two workers"
        for task, address in after.items():
            if before.get(task, address) == address:
                continue
            assert now[address] is Phase.JOINED, "a task has gone to a worker that cannot take it"
            if now.get(before[task]) in {Phase.JOINED, Phase.UNRESPONSIVE} and phases.get(before[task]):
                assert task not in self.moved, "a task has moved for balance before its last move was over"
            self.moved.add(task)

    def _phases(self) -> dict[str, Phase]:
        return {each.address: each.phase for each in self.registry.status().workers}

    def _at_rest(self) -> bool:
        return not any(each.moving for each in self.world.workers.values() if each.alive) and all(
            each.assignment is None or each.assignment == self.registry.current
            for address, each in self.world.workers.items()
            if address in self._phases() and each.alive
        )

    @invariant()
    def every_task_is_somewhere(self) -> None:
        """Once there is an assignment, a task is only unassigned if no worker could accept it."""
        status = self.registry.status()
        if status.version and status.joined_count:
            assert not status.unassigned

    @precondition(lambda self: any(each.alive and not each.draining for each in self.world.workers.values()))
    @rule()
    def quiet(self) -> None:
        """Without events, all settles: every live worker has its share and the current assignment."""
        for worker in self.world.workers.values():
            worker.moving = 0
        live = {
            address
            for address, each in self.world.workers.items()
            if each.alive and not each.draining and address in self.world.wanted
        }
        if not live:
            return
        for _ in range(12):
            self.world.round(self.registry)
        status = self.registry.status()
        shares = {each.address: len(each.tasks) for each in status.workers if each.phase is Phase.JOINED}
        assert status.stable, status
        assert shares.keys() == live
        assert max(shares.values()) - min(shares.values()) <= 1
        assert all(self.world.workers[address].assignment == self.registry.current for address in live)
        self.highest = max(self.highest, self.registry.version)
        self.moved.clear()  # no task moves any longer


Memberships.TestCase.settings = settings(
    max_examples=settings().max_examples * 3 // 2, stateful_step_count=40
)
TestMemberships = Memberships.TestCase


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
    placed = rebalance(tasks, workers, held)
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
    assert moves(held, rebalance(tasks, workers, held)) == fewest


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
    placed = rebalance(tasks, workers, held, pinned)
    assert placed.keys() == tasks
    bound = {task for task in pinned & tasks if held.get(task) in workers}
    assert all(placed[task] == held[task] for task in bound)
    counts = Counter(dict.fromkeys(workers, 0) | Counter(placed.values()))
    for task in tasks - bound:
        assert counts[placed[task]] <= min(counts.values()) + 1
