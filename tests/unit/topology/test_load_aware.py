"""The load-aware shuffle grouping, in a simulation of senders and queues.

Loads are reported once a second. A message that finds its queue full counts as the last one in the queue:
its wait at the sender is not counted, which favours the plain shuffle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, pstdev

import pytest

from tuplewire.grouping.grouping import GroupingContext, Locality, SingleGrouping, shuffle
from tuplewire.grouping.load_aware import LoadAwareShuffle
from tuplewire_topology.running.statistics import ExecutorLoad

STEPS = 100  # in a second

WORKER, EVERYTHING = Locality.WORKER, Locality.EVERYTHING


@dataclass
class Simulation:
    """Tasks with queues and speeds, and senders that share a rate (messages/s). A load is a fill ratio."""

    speeds: Sequence[float]
    rate: float
    queue: int
    senders: list[SingleGrouping] = field(default_factory=list)
    shares: list[list[float]] = field(default_factory=list)
    waits: list[tuple[float, int]] = field(default_factory=list)
    loads: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.queued = [0.0] * len(self.speeds)

    def add(self, make: Callable[[GroupingContext], SingleGrouping], near: Sequence[Locality] = ()) -> None:
        """Add a sender with a grouping. near: the locality of each task."""
        context = GroupingContext(
            range(len(self.speeds)),
            source=len(self.senders),
            locality=lambda: dict(enumerate(near)),
            loads=lambda: self.loads,
        )
        self.senders.append(make(context))

    def run(self, seconds: int) -> None:
        """Continue for this many seconds; `shares` and `waits` then contain only this time."""
        self.shares.clear()
        self.waits.clear()
        per_sender = self.rate / STEPS / len(self.senders)
        for _ in range(seconds):
            self.loads = {task: min(held / self.queue, 1.0) for task, held in enumerate(self.queued)}
            for sender in self.senders:
                sender.refresh()
            sent = [0] * len(self.speeds)
            for step in range(STEPS):
                count = int(per_sender * (step + 1)) - int(per_sender * step)
                for sender in self.senders:
                    for task, positions in sender.route(range(count)).items():
                        self._arrive(task, len(positions))
                        sent[task] += len(positions)
                self.queued = [
                    max(held - speed / STEPS, 0) for held, speed in zip(self.queued, self.speeds, strict=True)
                ]
            self.shares.append([count / sum(sent) for count in sent])

    def _arrive(self, task: int, count: int) -> None:
        self.queued[task] = min(self.queued[task] + count, self.queue)
        self.waits.append((self.queued[task] / self.speeds[task], count))

    def share(self, task: int) -> float:
        """Return the mean share of a task."""
        return fmean(share[task] for share in self.shares)

    def swing(self, task: int) -> float:
        """Return the relative standard deviation of a task's share per second."""
        return pstdev(share[task] for share in self.shares) / self.share(task)

    def p99(self) -> float:
        """Return the 99th percentile of the waits, in seconds."""
        before = 0
        total = sum(count for _, count in self.waits)
        for wait, count in sorted(self.waits):
            before += count
            if before >= 0.99 * total:
                return wait
        raise AssertionError("no message was sent")


def plain(context: GroupingContext) -> SingleGrouping:
    """Return the grouping to compare with."""
    return shuffle(context.tasks, context.source)


SLOW_TASK = [
    # slow speed, other speeds, rate, queue
    (100, 1_000, 4_000, 1_024),
    (100, 1_000, 4_000, 32_768),
    (300, 1_000, 5_000, 1_024),
    (500, 1_000, 5_600, 4_096),
    (1_000, 10_000, 40_000, 32_768),
]


@pytest.mark.slow
@pytest.mark.parametrize(("slow", "fast", "rate", "queue"), SLOW_TASK)
def test_slow_task_gets_what_it_can_do(slow: int, fast: int, rate: int, queue: int) -> None:
    """A slow task of eight gets what it can process, and the others share the rest. Waits are halved."""
    aware, blind = Simulation([slow] + [fast] * 7, rate, queue), Simulation([slow] + [fast] * 7, rate, queue)
    for _ in range(3):
        aware.add(LoadAwareShuffle)
        blind.add(plain)
    for simulation in (aware, blind):
        simulation.run(60)
        simulation.run(60)
    assert aware.share(0) == pytest.approx(slow / rate, rel=0.1)
    assert blind.share(0) == pytest.approx(1 / 8, rel=0.01)
    assert all(aware.share(task) == pytest.approx((1 - aware.share(0)) / 7, rel=0.05) for task in range(1, 8))
    assert aware.p99() <= blind.p99() / 2
    assert aware.swing(0) < 0.1
    assert max(aware.swing(task) for task in range(1, 8)) < 0.01


def test_share_comes_back() -> None:
    """A task that recovers its speed gets an equal share again."""
    simulation = Simulation([100] + [1_000] * 7, 4_000, 1_024)
    simulation.add(LoadAwareShuffle)
    simulation.run(60)
    assert simulation.share(0) < 0.04
    simulation.speeds = [1_000] * 8
    simulation.run(60)
    simulation.run(10)
    assert all(simulation.share(task) == pytest.approx(1 / 8, rel=0.05) for task in range(8))


@pytest.mark.parametrize("load", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("count", [2, 3, 7, 64, 300])
def test_equal_loads_have_equal_shares(load: float, count: int) -> None:
    """Equal loads, high or low, result in exactly equal shares."""
    grouping = LoadAwareShuffle(
        GroupingContext(range(count), 0, loads=lambda: dict.fromkeys(range(count), load))
    )
    for _ in range(10):
        grouping.refresh()
    assert set(grouping.shares.values()) == {1 / count}
    assert sorted(grouping.choose(range(count))) == list(range(count))


def test_task_that_is_not_heard_of() -> None:
    """A task without a reported load counts as full; without any reports, all shares are equal."""
    loads = {0: 0.1, 1: 0.1}
    grouping = LoadAwareShuffle(GroupingContext(range(3), 0, loads=lambda: loads))
    for _ in range(30):
        grouping.refresh()
    assert grouping.shares[2] < 0.01
    loads.clear()
    for _ in range(100):
        grouping.refresh()
    assert set(grouping.shares.values()) == {1 / 3}


LOCAL_ONE = [WORKER] + [EVERYTHING] * 7


@pytest.mark.parametrize("queue", [1_024, 8_192])
def test_farther_tasks_take_the_rest(queue: int) -> None:
    """If near tasks do not keep up, farther tasks get only the excess, without oscillation."""
    simulation = Simulation([1_000.0] * 8, 2_500, queue)
    simulation.add(LoadAwareShuffle, LOCAL_ONE)
    simulation.run(100)
    simulation.run(60)
    assert simulation.share(0) == pytest.approx(1_000 / 2_500, rel=0.05)
    assert simulation.swing(0) < 0.02
    assert 0.2 < simulation.loads[0] < 0.8


def test_tiers_open_one_after_the_other() -> None:
    """Tasks on the host are used before tasks on the rack, and those before all others."""
    tiers = [tier for tier in Locality for _ in range(2)]
    simulation = Simulation([1_000.0] * 8, 3_500, 1_024)
    simulation.add(LoadAwareShuffle, tiers)
    simulation.run(100)
    simulation.run(60)
    shares = [simulation.share(task) for task in range(8)]
    assert shares[0] == pytest.approx(1_000 / 3_500, rel=0.05)
    assert shares[2] == pytest.approx(750 / 3_500, rel=0.05)
    assert sum(shares[4:]) < 0.01


def test_move_changes_what_is_near() -> None:
    """A task that moves to the sender's worker is preferred after the next refresh."""
    near = {0: WORKER}
    grouping = LoadAwareShuffle(GroupingContext(range(4), 0, locality=lambda: near))
    assert set(grouping.shares.values()) == {1 / 4}  # no locality is known yet
    grouping.refresh()
    assert grouping.shares[0] == 1
    near = {3: WORKER}
    grouping.refresh()
    assert grouping.shares[3] == 1


def test_the_load_of_an_executor_is_the_wait_of_a_new_tuple() -> None:
    """A load follows from the wait of a new tuple: 100 tuples of 10 ms wait 1 s, a load of 0.5."""
    load = ExecutorLoad()
    assert load.update(arrived=0, executed=0, busy_seconds=0.0) == 0.0
    assert load.update(arrived=200, executed=100, busy_seconds=1.0) == pytest.approx(0.5)
    assert load.update(arrived=200, executed=200, busy_seconds=2.0) == 0.0  # nothing waits


def test_a_tuple_that_takes_long_counts_before_it_is_executed() -> None:
    """While no tuple completes, its time is at least the time since the last sample."""
    load = ExecutorLoad()
    load.update(arrived=10, executed=10, busy_seconds=0.01)
    assert load.update(arrived=20, executed=10, busy_seconds=1.01) > load.update(
        arrived=11, executed=10, busy_seconds=1.01
    )
    assert load.update(arrived=20, executed=10, busy_seconds=2.01) > 0.8
