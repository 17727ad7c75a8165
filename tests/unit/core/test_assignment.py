"""Assignments: validation, invalid files, changed files, and workers under another id or address."""

from __future__ import annotations

import asyncio
import json
import os
from collections import defaultdict
from pathlib import Path

import pytest
from helpers.logged import logged

from tuplewire.errors import ConfigError, StaleAssignmentError, WrongTopologyError
from tuplewire_service.worker.assignment import (
    MAX_VERSION,
    AssignedWorker,
    Assignment,
    AssignmentFile,
    load_assignment,
)
from tuplewire_service.worker.routing_table import find_id_mismatch, own_endpoints

ONE = AssignedWorker("one", "host-1:6700", (0, 2), node="n1")
TWO = AssignedWorker("two", "[::1]:6701", (1,))
WITH_TASKS = '{"version": 1, "topology": "t", "workers": [{"worker_id": "w", "address": "h:1", "tasks": %s}]}'
THREE = AssignedWorker("three", "host-3:6700", (3,), peer_address="host-3:7700")


def test_owners_and_peers() -> None:
    """Each task maps to its worker; other workers connect to a worker's peer address, if it has one."""
    assignment = Assignment(1, "t", (ONE, TWO))
    assert assignment.owner_by_task == {0: ONE, 2: ONE, 1: TWO}
    assert (assignment.tasks_of("one"), assignment.tasks_of("four")) == ((0, 2), ())
    assert (ONE.peer, THREE.peer) == (("one", "host-1:6700"), ("three", "host-3:7700"))


@pytest.mark.parametrize(
    ("version", "workers", "says"),
    [
        (0, [ONE], "version is 1 or more, not 0"),
        (MAX_VERSION + 1, [ONE], f"at most {MAX_VERSION}"),
        (1, [ONE, ONE], "'one' is empty or twice"),
        (1, [AssignedWorker("", "h:1", ())], "'' is empty or twice"),
        (1, [ONE, AssignedWorker("two", "h:1", (2,))], "task 2 is assigned to one and two"),
        (1, [AssignedWorker("w", "h:1", (4, 4))], "task 4 is assigned to w and w"),
        (1, [ONE, AssignedWorker("w", ONE.address, ())], "host-1:6700 is both one's and w's"),
        (1, [THREE, AssignedWorker("w", "h:1", (), peer_address="host-3:7700")], "is both three's and w's"),
        (1, [AssignedWorker("w", "h:1", (), peer_address="h")], "address 'h' is not host:port"),
        (1, [AssignedWorker("a\nb", "h:1", (1,))], "a.nb"),
        (1, [AssignedWorker("w", "h:1", (True,))], "task id"),
        (1, [AssignedWorker("w", "h:1", (1.5,))], "task id"),  # type: ignore[arg-type]
    ],
)
def test_invalid(version: int, workers: list[AssignedWorker], says: str) -> None:
    """An invalid version, worker, address or task list is rejected, and the error names it."""
    with pytest.raises(ConfigError, match=says):
        Assignment(version, "t", tuple(workers))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "as the JSON of an assignment: Expecting value"),
        ("[]", "an assignment must be an object, not"),
        ('{"version": 1, "topology": "t"}', "needs the key 'workers'"),
        ('{"version": 1, "topology": "t", "workers": [{"worker_id": "w"}]}', "needs the key 'address'"),
        ('{"version": 1, "topology": "t", "workers": 5}', "workers must be a list, not 5"),
        ('{"version": 1.9, "topology": "t", "workers": []}', "version must be a whole number, not 1.9"),
        ('{"version": 1, "topology": "", "workers": []}', "needs the name of its topology"),
        (
            '{"version": 1, "topology": "t", "workers": [], "active": 1}',
            "active must be true or false, not 1",
        ),
        ('{"version": 1, "topology": "t", "workers": [], "more": 1}', "unknown key 'more'; known are"),
        (WITH_TASKS % "[-1]", "task -1 is outside"),
        *((WITH_TASKS % f"[0, {task}]", "task id") for task in ("true", "1.0", '"1"', "null")),
    ],
)
def test_bad_file(tmp_path: Path, text: str, says: str) -> None:
    """An invalid assignment file raises a ConfigError that names the file and the problem."""
    path = tmp_path / "assignment.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=says) as caught:
        load_assignment(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("force", [False, True])
def test_what_succeeds_an_assignment(*, force: bool) -> None:
    """A newer version replaces an assignment, an equal one has no effect, and any other one is rejected."""
    known = Assignment(5, "t", (ONE,))
    with pytest.raises(WrongTopologyError, match="for topology 'other', this worker serves 't'"):
        Assignment(6, "other", ()).replaces(known, "t", force=force)
    assert Assignment(6, "t", (TWO,)).replaces(known, "t", force=force)
    assert not Assignment(5, "t", (ONE,)).replaces(known, "t", force=force)
    for other in (Assignment(5, "t", (TWO,)), Assignment(4, "t", (ONE,))):
        with pytest.raises(StaleAssignmentError):
            other.replaces(known, "t", force=force)


def test_how_far_a_version_may_be_ahead() -> None:
    """A version may be 2^32 ahead; a worker without an assignment accepts all but the last 2^32 versions."""
    in_force, ahead = Assignment(7, "t", (ONE,)), 2**32
    Assignment(7 + ahead, "t", (ONE,)).replaces(in_force, "t")
    with pytest.raises(ConfigError, match="is too far ahead \\(current: 7;"):
        Assignment(8 + ahead, "t", (ONE,)).replaces(in_force, "t")
    Assignment(MAX_VERSION - ahead, "t", (ONE,)).replaces(None, "t")
    with pytest.raises(ConfigError, match="is too far ahead \\(current: none;"):
        Assignment(MAX_VERSION - ahead + 1, "t", (ONE,)).replaces(None, "t")


def _text(version: int) -> str:
    workers = [{"worker_id": "a", "address": "127.0.0.1:6700", "tasks": [0, version]}]
    return json.dumps({"version": version, "topology": "default", "workers": workers})


def _write(file: Path, version: int) -> None:
    file.write_text(_text(version))


class _Taker:
    """Accepts assignments as a worker does."""

    def __init__(self) -> None:
        self.versions: list[int] = []
        self.reached: defaultdict[int, asyncio.Event] = defaultdict(asyncio.Event)

    def update(self, assignment: Assignment) -> bool:
        if self.versions and assignment.version < self.versions[-1]:
            raise StaleAssignmentError(f"version {assignment.version} is older")
        if self.versions and assignment.version == self.versions[-1]:
            return False
        self.versions.append(assignment.version)
        self.reached[assignment.version].set()
        return True


def _check(source: AssignmentFile) -> bool:
    return asyncio.run(source.check())


@pytest.fixture
def taker() -> _Taker:
    """Return a taker that has no assignment yet."""
    return _Taker()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return the path of the assignment file."""
    return tmp_path / "assignment.json"


@pytest.fixture
def source(file: Path, taker: _Taker) -> AssignmentFile:
    """Return the source that polls the assignment file."""
    return AssignmentFile(file, taker.update)


def test_a_swapped_symlink_is_seen(tmp_path: Path, file: Path, source: AssignmentFile, taker: _Taker) -> None:
    """A ConfigMap update swaps a symlink; it is applied once, even if size and times are equal."""
    for version in (1, 2):
        (tmp_path / f"..{version}").mkdir()
        (tmp_path / f"..{version}" / "assignment.json").write_text(_text(version))
        os.utime(tmp_path / f"..{version}" / "assignment.json", ns=(0, 0))
    (tmp_path / "..data").symlink_to("..1")
    file.symlink_to("..data/assignment.json")
    assert [_check(source), _check(source)] == [True, False]
    (tmp_path / "..next").symlink_to("..2")
    (tmp_path / "..next").replace(tmp_path / "..data")
    assert [_check(source), _check(source)] == [True, False]
    assert taker.versions == [1, 2]


@pytest.mark.parametrize(
    "bad", ["", "{", "[]", '{"version": 2}', _text(0), '{"version": 2, "topology": "t", "workers": [3]}']
)
def test_a_bad_file_is_told_and_the_old_one_stays(
    file: Path, source: AssignmentFile, taker: _Taker, bad: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Invalid content is logged once, and the next valid content is applied."""
    _write(file, 1)
    _check(source)
    file.write_text(bad)
    assert [_check(source), _check(source)] == [False, False]
    assert (bool(source.problem), taker.versions) == (True, [1])
    (told,) = logged(caplog, "assignment_file.refused")
    assert str(file) in told["reason"]
    _write(file, 2)
    assert _check(source)
    assert (source.problem, taker.versions) == ("", [1, 2])


def test_a_refused_assignment_is_told(file: Path, source: AssignmentFile, taker: _Taker) -> None:
    """An assignment older than the current one is reported as a problem of the file."""
    taker.versions.append(7)
    _write(file, 3)
    assert not _check(source)
    assert "version 3 is older" in source.problem


def test_a_missing_file_may_come_later(file: Path, source: AssignmentFile) -> None:
    """A missing file is reported, and is read when it appears."""
    assert [_check(source), _check(source)] == [False, False]
    assert "cannot read" in source.problem
    _write(file, 1)
    assert _check(source)


def _reason(worker_id: str, bound: str, *workers: tuple[str, str], advertise: str = "") -> str:
    assignment = Assignment(1, "t", tuple(AssignedWorker(*each, ()) for each in workers))
    return find_id_mismatch(assignment, worker_id, own_endpoints([bound, "unix:///run/w.sock"], advertise))


@pytest.mark.parametrize(
    ("bound", "address"),
    [
        ("127.0.0.1:6700", "127.0.0.1:6700"),
        ("127.0.0.1:6700", "127.0.0.1:7000"),  # the address of a proxy
        ("0.0.0.0:6700", "10.0.0.7:6700"),
        ("[::]:6700", "worker-0.workers:80"),
    ],
)
def test_a_worker_that_is_named_is_meant_wherever_it_is_said_to_be(bound: str, address: str) -> None:
    """The id alone decides, because proxies, mapped ports and host aliases change the address."""
    assert _reason("w", bound, ("w", address), ("v", "10.0.0.8:6700")) == ""


@pytest.mark.parametrize(
    ("bound", "advertise", "address"),
    [
        ("127.0.0.1:6700", "", "127.0.0.1:6700"),
        ("127.0.0.1:6700", "", "localhost:6700"),
        ("0.0.0.0:6700", "", "127.0.0.1:6700"),
        ("[::]:6700", "", "[::1]:6700"),
        ("0.0.0.0:6700", "10.0.0.7", "10.0.0.7:6700"),
        ("0.0.0.0:6700", "host-7:80", "Host-7:80"),
    ],
)
def test_a_worker_that_is_called_otherwise_is_told_its_name(bound: str, advertise: str, address: str) -> None:
    """The reason names the address, its id in the assignment, and the flag."""
    assert _reason("vm:6700", bound, ("w1", address), advertise=advertise).startswith(
        f"the assignment has no worker vm:6700; it gives {address}, which is here, to w1: start with"
    )


@pytest.mark.parametrize("address", ["127.0.0.1:6701", "10.0.0.7:6700", "localhost:80"])
def test_a_worker_that_is_not_named_hears_who_is(address: str) -> None:
    """Without a matching address, the reason only lists the assigned workers."""
    reason = _reason("w2", "127.0.0.1:6700", ("w1", address))
    assert "no worker w2 (here, at 127.0.0.1:6700), only w1: start with the --worker-id" in reason


def test_a_worker_whose_address_is_anothers_is_not_meant() -> None:
    """Swapped addresses are an error, because two workers would receive each other's messages."""
    reason = _reason("a", "127.0.0.1:1", ("a", "127.0.0.1:2"), ("b", "127.0.0.1:1"))
    assert "has a elsewhere, and gives 127.0.0.1:1, here, to b" in reason
    assert "--worker-id b" in reason
