"""Assignments: validation, and the errors for an invalid file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.topology import as_json

from tuplewire.errors import ConfigError, StaleAssignmentError, WrongTopologyError
from tuplewire_service.worker.assignment import MAX_VERSION, AssignedWorker, Assignment, load_assignment

ONE = AssignedWorker("one", "host-1:6700", (0, 2), node="n1")
TWO = AssignedWorker("two", "[::1]:6701", (1,))
THREE = AssignedWorker("three", "host-3:6700", (3,), peer_address="host-3:7700")


def test_owners() -> None:
    """Each task maps to its worker, and each worker to its tasks."""
    assignment = Assignment(1, "t", (ONE, TWO))
    assert assignment.owner_of == {0: ONE, 2: ONE, 1: TWO}
    assert assignment.tasks_of("one") == (0, 2)
    assert assignment.tasks_of("four") == ()


def test_peer_address() -> None:
    """Other workers connect to a worker's peer address, which is part of the connection's identity."""
    assert THREE.peer == ("three", "host-3:7700")
    assert ONE.peer == ("one", "host-1:6700")


def test_round_trip(tmp_path: Path) -> None:
    """An assignment written as JSON is read back unchanged."""
    path = tmp_path / "assignment.json"
    assignment = Assignment(3, "t", (ONE, TWO, THREE))
    path.write_text(as_json(assignment))
    assert load_assignment(path) == assignment
    inactive = replace(assignment, active=False)
    path.write_text(as_json(inactive))
    assert load_assignment(path) == inactive


@pytest.mark.parametrize(
    ("version", "workers", "says"),
    [
        (0, [ONE], "version is 1 or more, not 0"),
        (1, [ONE, ONE], "'one' is empty or twice"),
        (1, [AssignedWorker("", "h:1", ())], "'' is empty or twice"),
        (1, [ONE, AssignedWorker("two", "h:1", (2,))], "task 2 is assigned to one and to two"),
        (1, [AssignedWorker("w", "h:1", (4, 4))], "task 4 is assigned to w and to w"),
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
        ("", "Expecting value"),
        ("{", "Expecting"),
        ("[]", "an assignment must be an object, not"),
        ("null", "an assignment must be an object, not None"),
        ('{"version": 1, "topology": "t"}', "needs the key 'workers'"),
        ('{"version": "x", "topology": "t", "workers": []}', "version must be a whole number, not 'x'"),
        ('{"version": 1, "topology": "t", "workers": [{"worker_id": "w"}]}', "needs the key 'address'"),
        ('{"version": 1, "topology": "t", "workers": 5}', "workers must be a list, not 5"),
        ('{"version": 1.9, "topology": "t", "workers": []}', "version must be a whole number, not 1.9"),
        ('{"version": 1, "topology": null, "workers": []}', "topology must be a string, not None"),
        ('{"version": 1, "topology": "", "workers": []}', "needs the name of its topology"),
        (
            '{"version": 1, "topology": "t", "workers": [], "active": 1}',
            "active must be true or false, not 1",
        ),
        ('{"version": 1, "topology": "t", "workers": [], "more": 1}', "unknown key 'more'; known are"),
        (
            (
                '{"version": 1, "topology": "t", "workers": '
                '[{"worker_id": "w", "address": "h:1", "tasks": [-1]}]}'
            ),
            "task -1 is outside",
        ),
    ],
)
def test_bad_file(tmp_path: Path, text: str, says: str) -> None:
    """An invalid assignment file raises a ConfigError that names the file and the problem."""
    path = tmp_path / "assignment.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=says) as caught:
        load_assignment(path)
    assert str(path) in str(caught.value)


def test_no_text_and_no_file(tmp_path: Path) -> None:
    """A file that is not UTF-8, or cannot be read, raises a ConfigError with the reason."""
    path = tmp_path / "assignment.json"
    path.write_bytes(b"\xff\xfe")
    for file, says in ((path, "utf-8"), (tmp_path / "missing.json", r"missing\.json: No such file")):
        with pytest.raises(ConfigError, match=says):
            load_assignment(file)
    with pytest.raises(ConfigError, match="Is a directory"):
        load_assignment(tmp_path)


def test_another_topologys_assignment_is_refused() -> None:
    """The error names both topologies."""
    with pytest.raises(WrongTopologyError, match="for topology 'other', this worker serves 't'"):
        Assignment(1, "other", ()).succeeds(None, "t")


@pytest.mark.parametrize("force", [False, True])
def test_what_succeeds_an_assignment(*, force: bool) -> None:
    """A newer version replaces an assignment, an equal one has no effect, and any other one is rejected."""
    known = Assignment(5, "t", (ONE,))
    assert Assignment(6, "t", (TWO,)).succeeds(known, "t", force=force)
    assert not Assignment(5, "t", (ONE,)).succeeds(known, "t", force=force)
    for other in (Assignment(5, "t", (TWO,)), Assignment(4, "t", (ONE,))):
        with pytest.raises(StaleAssignmentError):
            other.succeeds(known, "t", force=force)


@pytest.mark.parametrize("known", [None, Assignment(5, "t", (ONE,))])
def test_a_version_that_jumps_needs_force(known: Assignment | None) -> None:
    """A version too far ahead requires force: if it is a typo, it would block all later versions."""
    far = Assignment(MAX_VERSION, "t", (ONE,))
    with pytest.raises(ConfigError, match="too far ahead"):
        far.succeeds(known, "t", force=False)
    assert far.succeeds(known, "t", force=True)


def test_the_last_version() -> None:
    """A version above MAX_VERSION is rejected."""
    with pytest.raises(ConfigError, match=f"at most {MAX_VERSION}"):
        Assignment(MAX_VERSION + 1, "t", (ONE,))


@pytest.mark.parametrize("task", [True, 1.0, "1", None])
def test_a_task_id_is_a_number(task: Any, tmp_path: Path) -> None:
    """Booleans, floats, strings and null are not task ids."""
    path = tmp_path / "assignment.json"
    form = json.loads(as_json(Assignment(3, "t", (ONE,))))
    form["workers"][0]["tasks"] = [0, task]
    path.write_text(json.dumps(form))
    with pytest.raises(ConfigError, match="task id"):
        load_assignment(path)


def test_how_far_a_version_may_be_ahead() -> None:
    """A version may be 2^32 ahead; a worker without an assignment accepts all but the last 2^32 versions."""
    in_force, ahead = Assignment(7, "t", (ONE,)), 2**32
    Assignment(7 + ahead, "t", (ONE,)).succeeds(in_force, "t")
    with pytest.raises(ConfigError, match="is too far ahead \\(current: 7;"):
        Assignment(8 + ahead, "t", (ONE,)).succeeds(in_force, "t")
    Assignment(MAX_VERSION - ahead, "t", (ONE,)).succeeds(None, "t")
    with pytest.raises(ConfigError, match="is too far ahead \\(current: none;"):
        Assignment(MAX_VERSION - ahead + 1, "t", (ONE,)).succeeds(None, "t")
