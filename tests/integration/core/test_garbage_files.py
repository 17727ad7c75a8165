"""Garbage in a worker's files and in UpdateAssignment: the worker keeps running, unchanged."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from helpers.worker_process import Running, assignment_for, run_command, running

from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import ProtocolError
from tuplewire.wire import control_pb2
from tuplewire_service.testing import eventually
from tuplewire_service.worker.assignment import MAX_VERSION, MOST_AHEAD, Assignment, AssignmentFile


def _one(version: object = 2, worker_id: object = "a", address: object = "127.0.0.1:1") -> bytes:
    workers = [{"worker_id": worker_id, "address": address, "tasks": [0]}]
    return json.dumps({"version": version, "topology": "default", "workers": workers}).encode()


GARBAGE = [
    b"",
    b"\0" * 100,
    b"[" * 100_000,
    b'{"version": 2, "topology": "default", "workers": ' + b"[" * 100_000,
    b"\xff\xfe\xfd",
    _one(address="h\ud800:1"),
    _one(worker_id="a\ud800"),
    _one(worker_id="a\0"),
    _one(worker_id="a" * 100_000),
    _one(version=2**64),
    _one(version=2**70),
    b'{"version": ' + b"9" * 5000 + b"}",
    _one(version=True),
    _one(version=[]),
]
TO_A_WORKER = [*GARBAGE[::5], _one(version=MAX_VERSION)]
"""Few cases, because a worker reads its file once a second. Only a worker refuses MAX_VERSION."""


def _version(worker: Running) -> int:
    with ControlClient(worker.address) as control:
        return control.status().assignment_version


@pytest.mark.parametrize("content", GARBAGE, ids=lambda content: repr(content[:40]))
def test_garbage_is_no_assignment(content: bytes, tmp_path: Path) -> None:
    """Garbage is reported as a problem, and no assignment is applied."""
    file = tmp_path / "assignment.json"
    file.write_bytes(content)
    handed_on: list[Assignment] = []

    def take(found: Assignment) -> bool:
        handed_on.append(found)
        return True

    source = AssignmentFile(file, take)
    assert not asyncio.run(source.check())
    assert (bool(source.problem), handed_on) == (True, [])


def test_garbage_in_the_assignment_file_changes_nothing(tmp_path: Path) -> None:
    """Garbage is counted and logged with the file's name; a valid assignment after it is applied."""
    file = tmp_path / "assignment.json"
    file.write_bytes(b"no assignment yet")
    with running(tmp_path, f"--assignment-file={file}") as worker:
        file.write_text(json.dumps(_json(worker, 1)))
        eventually(lambda: _version(worker) == 1)
        for number, content in enumerate(TO_A_WORKER, 2):
            file.write_bytes(content)
            eventually(lambda number=number: worker.log.count("assignment_file.refused") == number)  # type: ignore[misc]
            assert str(file) in worker.log.splitlines()[-1]
            assert _version(worker) == 1
            assert worker.get("/metrics")[0] == 200
        file.unlink()
        file.mkdir()
        eventually(lambda: "Is a directory" in worker.log)
        file.rmdir()
        file.write_text(json.dumps(_json(worker, 2)))
        eventually(lambda: _version(worker) == 2)
        assert worker.end() == 0


def _json(worker: Running, version: int) -> object:
    workers = [{"worker_id": "a", "address": worker.address, "tasks": [0]}]
    return {"version": version, "topology": "default", "workers": workers}


@pytest.mark.parametrize(
    ("worker_id", "address", "version"),
    [
        ("a\0", "h:1", 2),
        ("a", "h\n:1", 2),
        ("a" * 300, "h:1", 2),
        ("a", "h:1", 2**64 - 1),
        ("a", "h:1", 2**63),
    ],
)
def test_garbage_in_update_assignment_changes_nothing(
    shared: Running, worker_id: str, address: str, version: int
) -> None:
    """A bad assignment is refused by name, even with force; the current assignment remains."""
    with ControlClient(shared.address) as control:
        control.update_assignment(assignment_for(shared, 1))
        bad = control_pb2.Assignment(
            version=version,
            topology="default",
            workers=[control_pb2.AssignedWorker(worker_id=worker_id, address=address, tasks=[0])],
        )
        for force in (False, True):
            with pytest.raises(ProtocolError, match=r"characters|an assignment's version is at most"):
                control.update_assignment(bad, force=force)
        assert control.assignment() == assignment_for(shared, 1)


def test_a_version_that_jumps_needs_force(worker: Running, tmp_path: Path) -> None:
    """A version more than 2^32 ahead is refused with advice; `assign --force` applies it."""
    file = tmp_path / "jump.json"
    with ControlClient(worker.address) as control:
        for version in (1, 1 + MOST_AHEAD):
            control.update_assignment(assignment_for(worker, version))
        file.write_text(json.dumps(_json(worker, 2 + 2 * MOST_AHEAD)))
        refused = run_command("assign", "--address", worker.address, str(file))
        assert refused.returncode != 0
        assert "too far ahead" in refused.stderr
        assert "--force" in refused.stderr
        assert control.status().assignment_version == 1 + MOST_AHEAD
        assert run_command("assign", "--force", "--address", worker.address, str(file)).returncode == 0
        assert control.status().assignment_version == 2 + 2 * MOST_AHEAD
