"""The workers of tasks by the last assignment, and the addresses to request the next one from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from tuplewire.connection.task_owners import TaskOwners
from tuplewire.errors import NotReadyError, WrongTopologyError
from tuplewire.settings.addresses import Peer
from tuplewire.wire import control_pb2 as pb


def assignment(version: int, tasks: Mapping[str, Iterable[int]], topology: str = "test") -> pb.Assignment:
    """Return an assignment: the workers have the address `NAME:1`."""
    workers = [pb.AssignedWorker(worker_id=name, address=f"{name}:1", tasks=of) for name, of in tasks.items()]
    return pb.Assignment(version=version, topology=topology, workers=workers)


def test_tasks_are_grouped_by_worker() -> None:
    """group_tasks() omits unknown tasks, and unknown_error() names them."""
    owners = TaskOwners("test", "near:1")
    owners.apply(assignment(3, {"a": [1, 2], "b": [3], "c": []}), "near:1")
    assert owners.group_tasks([3, 1, 2, 9]) == {Peer("b", "b:1"): [3], Peer("a", "a:1"): [1, 2]}
    assert owners.by_address == {f"{name}:1": Peer(name, f"{name}:1") for name in "abc"}
    assert "task 9 is not in assignment version 3, which has 1-3: use" in str(owners.unknown_error([9]))


def test_addresses_start_with_the_own_worker_and_the_newest() -> None:
    """Every address occurs once; the latest 100 stay for the case that no newer worker answers."""
    owners = TaskOwners("test", "near:1", ["given:1"])
    assert list(owners.addresses) == ["near:1", "given:1"]
    owners.apply(assignment(1, {"near": [1], "a": [2]}), "near:1")
    owners.apply(assignment(2, {"b": [1, 2]}), "near:1")
    assert list(owners.addresses) == ["near:1", "b:1", "a:1", "given:1"]
    for number in range(3, 150):
        owners.apply(assignment(number, {f"w{number}": [1]}), "near:1")
    assert (len(owners.others), owners.others[0]) == (100, "w149:1")


def test_a_worker_without_a_fitting_assignment_is_an_error() -> None:
    """The errors name the worker; the last assignment stays."""
    owners = TaskOwners("test", "near:1")
    owners.apply(assignment(1, {"a": [1]}), "near:1")
    with pytest.raises(NotReadyError, match="the worker at b:1 has no assignment yet"):
        owners.apply(None, "b:1")
    with pytest.raises(WrongTopologyError, match="b:1 serves topology 'other', not 'test'"):
        owners.apply(assignment(2, {"b": [1]}, "other"), "b:1")
    assert owners.group_tasks([1]) == {Peer("a", "a:1"): [1]}
