"""The registry of workers: members, expiry and assignments, with a clock that the test controls."""

from __future__ import annotations

import pytest
from helpers.members import TOPOLOGY, World

from tuplewire.errors import ProtocolError
from tuplewire.membership.member_status import Phase
from tuplewire.membership.registry import Registry
from tuplewire.wire import control_pb2

TASKS = range(12)


def registry(min_workers: int = 1) -> Registry:
    """Return a registry without workers."""
    return Registry(TOPOLOGY, TASKS, min_workers=min_workers, expire_seconds=10.0)


def world_of(count: int) -> World:
    """Return a world with the workers 1 to `count`."""
    world = World()
    for number in range(1, count + 1):
        world.add(number)
    return world


def settled(count: int) -> tuple[World, Registry]:
    """Return `count` workers, and a registry that has assigned their tasks."""
    world, kept = world_of(count), registry()
    world.settle(kept)
    return world, kept


def tasks_of(kept: Registry) -> dict[str, tuple[int, ...]]:
    """Return each worker's tasks."""
    return {each.worker_id: each.tasks for each in kept.status().workers if each.phase is not Phase.ABSENT}


def counts(kept: Registry) -> dict[str, int]:
    """Return the number of tasks of each worker."""
    return {worker: len(tasks) for worker, tasks in tasks_of(kept).items()}


def happened(kept: Registry) -> list[str]:
    """Return the names of the events, and clear the events."""
    names = [name for name, _ in kept.events]
    kept.events.clear()
    return names


def test_nothing_is_assigned_before_enough_workers_are_there() -> None:
    """With min_workers=2, a single worker gets no tasks."""
    world, kept = world_of(1), registry(min_workers=2)
    assert world.round(kept) is None
    assert len(kept.status().unassigned) == len(TASKS)
    world.add(2)
    world.settle(kept)
    assert counts(kept) == {"w1": 6, "w2": 6}


def test_a_task_moves_for_balance_once_its_last_move_is_over() -> None:
    """A moved task stays until no task moves; a stuck move does not keep other tasks from new workers."""
    world, kept = settled(2)
    world.add(3)
    world.settle(kept)
    moved = tasks_of(kept)["w3"]
    world.workers["10.0.0.1:6700"].moving = 1
    world.add(4)
    world.round(kept)
    world.round(kept)
    assert counts(kept) == {"w1": 3, "w2": 3, "w3": 3, "w4": 3}, "nothing had moved since all was settled"
    again = tasks_of(kept)["w4"]
    assert set(again) & set(moved)
    world.add(5)
    for _ in range(5):
        world.round(kept)
    assert tasks_of(kept)["w4"] == again
    assert counts(kept) == {"w1": 3, "w2": 2, "w3": 2, "w4": 3, "w5": 2}
    world.add(6)
    for _ in range(5):
        world.round(kept)
    assert tasks_of(kept)["w4"] == again
    assert counts(kept) == {"w1": 2, "w2": 2, "w3": 2, "w4": 3, "w5": 2, "w6": 1}
    world.workers["10.0.0.1:6700"].moving = 0
    world.settle(kept)
    assert set(counts(kept).values()) == {2}


def test_a_worker_that_drains_loses_its_tasks_at_once() -> None:
    """A draining worker loses its tasks in the same round, and is listed until it stops responding."""
    world, kept = settled(3)
    leaving = world.workers["10.0.0.2:6700"]
    leaving.draining = True
    world.workers["10.0.0.1:6700"].moving = 3
    world.round(kept)
    assert counts(kept) == {"w1": 6, "w2": 0, "w3": 6}
    assert leaving.assignment == kept.current
    leaving.alive = False
    world.round(kept)
    assert counts(kept) == {"w1": 6, "w3": 6}
    assert kept.current is not None
    assert [each.worker_id for each in kept.current.workers] == ["w1", "w3"]


def test_a_worker_whose_executor_is_gone_leaves() -> None:
    """A worker without an executor gets assignments while it responds, and is removed when it does not."""
    world, kept = settled(2)
    del world.wanted["10.0.0.2:6700"]
    world.round(kept)
    assert counts(kept) == {"w1": 12, "w2": 0}
    assert world.workers["10.0.0.2:6700"].assignment == kept.current
    world.workers["10.0.0.2:6700"].alive = False
    world.round(kept)
    assert counts(kept) == {"w1": 12}
    assert happened(kept)[-3:] == ["assignment.issued", "worker.left", "assignment.issued"]


def test_a_silent_worker_keeps_its_tasks_until_it_expires() -> None:
    """A silent worker keeps its tasks for expire_seconds; then other workers get them."""
    world, kept = settled(2)
    world.workers["10.0.0.2:6700"].alive = False
    world.round(kept)
    silent_since = world.now
    while world.now < silent_since + 9:
        world.round(kept)
        assert counts(kept) == {"w1": 6, "w2": 6}
    world.round(kept)
    assert counts(kept) == {"w1": 12}
    assert [each.phase for each in kept.status().workers] == [Phase.JOINED, Phase.ABSENT]


def test_a_membership_that_stood_still_expires_nobody() -> None:
    """After a freeze, a failed poll of all workers does not expire them."""
    world, kept = settled(2)
    for each in world.workers.values():
        each.alive = False
    world.now += 60
    world.round(kept)
    assert counts(kept) == {"w1": 6, "w2": 6}
    for each in world.workers.values():
        each.alive = True
    world.round(kept)
    assert counts(kept) == {"w1": 6, "w2": 6}
    assert "worker.expired" not in happened(kept)


def test_a_driver_that_takes_over_waits_for_a_silent_worker() -> None:
    """A worker of the assignment that the driver finds is treated like one that has become silent."""
    world, first = settled(2)
    world.workers["10.0.0.2:6700"].alive = False
    second = registry()
    world.round(second)
    assert tasks_of(second) == tasks_of(first)
    for _ in range(10):
        world.round(second)
    assert counts(second) == {"w1": 12}


@pytest.mark.parametrize("together", [False, True])
def test_spouts_are_switched_from_outside(*, together: bool) -> None:
    """A switch is adopted, also by workers that join later, or at the same time with the same version."""
    world, kept = settled(2)
    switch = control_pb2.Assignment()
    assert kept.current is not None
    switch.CopyFrom(kept.current)
    switch.version, switch.inactive = 2, True
    if together:
        world.add(3)
        answers = {address: each.report(address, kept) for address, each in world.workers.items()}
        world.workers["10.0.0.1:6700"].assignment = switch
        kept.apply_poll(world.now, world.wanted, answers)
        kept.decide()
        assert kept.version == 2
        for address in kept.outdated_workers():
            kept.apply_outcome(address, world.workers[address].take(kept.current))
    else:
        for each in world.workers.values():
            each.assignment = switch
        world.settle(kept)
        world.add(3)
    world.settle(kept)
    assert not kept.superseded_reason
    assert all(each.assignment == kept.current for each in world.workers.values())
    assert (kept.current.inactive, counts(kept)) == (True, {"w1": 4, "w2": 4, "w3": 4})


def test_the_older_of_two_drivers_gives_way() -> None:
    """A driver that finds a newer assignment at its own worker stops its decisions and reports it."""
    world, first, second = world_of(2), registry(), registry()
    world.settle(first)
    world.settle(second)
    world.add(3)
    assert world.round(first) is None
    assert "let one program at a time" in first.superseded_reason
    assert not first.outdated_workers()
    world.settle(second)
    assert counts(second) == {"w1": 4, "w2": 4, "w3": 4}
    assert not second.superseded_reason


def test_a_driver_that_is_taking_over_goes_beyond_a_rival() -> None:
    """If its first version is refused as stale, a driver that is taking over continues with a higher one."""
    world, kept = world_of(1), registry()
    worker = world.workers["10.0.0.1:6700"]
    kept.apply_poll(0.0, world.wanted, {"10.0.0.1:6700": worker.report("10.0.0.1:6700", kept)})
    kept.decide()
    worker.assignment = control_pb2.Assignment(version=1, topology=TOPOLOGY)
    assert kept.current is not None
    kept.apply_outcome("10.0.0.1:6700", worker.take(kept.current))
    world.settle(kept)
    assert kept.version == 2
    assert worker.assignment == kept.current


@pytest.mark.parametrize(
    ("attribute", "value", "says"),
    [
        ("topology", "another", "--topology test"),
        ("worker_id", "w1", "--worker-id"),
        ("draining", True, "draining"),
    ],
)
def test_a_worker_that_does_not_fit_is_not_registered(attribute: str, value: object, says: str) -> None:
    """The worker gets no assignment; the status gives the reason, and the log contains it once."""
    world, kept = world_of(2), registry()
    worker = world.workers["10.0.0.2:6700"]
    setattr(worker, attribute, value)
    for _ in range(3):
        world.round(kept)
    absent = kept.status().workers[-1]
    assert absent.phase is Phase.ABSENT
    assert says in absent.problem
    assert worker.assignment is None
    assert happened(kept).count("worker.not_registered") == 1


def test_a_successor_by_the_same_id_takes_the_place_of_a_silent_worker() -> None:
    """A StatefulSet pod, for example, returns with the same name at another address."""
    world, kept = settled(2)
    world.workers["10.0.0.2:6700"].alive = False
    world.round(kept)
    world.add(3).worker_id = "w2"
    world.settle(kept)
    assert counts(kept) == {"w1": 6, "w2": 6}
    assert kept.current is not None
    assert [each.address for each in kept.current.workers] == ["10.0.0.1:6700", "10.0.0.3:6700"]


def test_a_refusal_is_shown_and_logged_once() -> None:
    """The worker stays registered, and the assignment is sent again."""
    world, kept = world_of(1), registry()
    address = "10.0.0.1:6700"
    kept.apply_poll(0.0, world.wanted, {address: world.workers[address].report(address, kept)})
    kept.decide()
    for _ in range(3):
        kept.apply_outcome("10.0.0.1:6700", ProtocolError("no"))
    assert happened(kept).count("assignment.refused") == 1
    assert kept.status().workers[0].problem == "no"
    assert kept.outdated_workers() == ["10.0.0.1:6700"]


def test_peers_with_a_transport_of_their_own() -> None:
    """The port comes from the worker's report, and the host from its discovered address."""
    world, kept = world_of(1), registry()
    world.workers["10.0.0.1:6700"].peer_addresses = ("0.0.0.0:6701",)
    world.settle(kept)
    assert kept.current is not None
    assert kept.current.workers[0].peer_address == "10.0.0.1:6701"


def test_status_as_text() -> None:
    """The status has a line for each worker, including an expected worker that is absent."""
    world, kept = world_of(2), registry()
    del world.workers["10.0.0.2:6700"]
    world.settle(kept)
    assert str(kept.status()).splitlines() == [
        "topology test: assignment 1, 1 worker, settled",
        "  10.0.0.1:6700  joined  12 tasks  w1  executor 1  1.0",
        "  10.0.0.2:6700  absent  0 tasks  executor 2  no route",
    ]
