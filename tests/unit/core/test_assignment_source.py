"""The assignment file: updates when it changes, and errors when it is invalid."""

from __future__ import annotations

import asyncio
import json
import os
from collections import defaultdict
from pathlib import Path

import pytest
from helpers.logged import logged

from tuplewire.errors import StaleAssignmentError
from tuplewire_service.worker.assignment import Assignment, AssignmentFile


def _text(version: int) -> str:
    workers = [{"worker_id": "a", "address": "127.0.0.1:6700", "tasks": [0, version]}]
    return json.dumps({"version": version, "topology": "default", "workers": workers})


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


def _write(file: Path, version: int) -> None:
    file.write_text(_text(version))


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


def test_a_changed_file_is_handed_on_once(file: Path, source: AssignmentFile, taker: _Taker) -> None:
    """Each version of the file is applied once, regardless of the number of checks."""
    for version in (1, 2):
        _write(file, version)
        assert [_check(source), _check(source)] == [True, False]
    assert taker.versions == [1, 2]


def test_a_swapped_symlink_is_seen(tmp_path: Path, file: Path, source: AssignmentFile, taker: _Taker) -> None:
    """A ConfigMap update swaps a symlinked directory; it is detected even if size and times are equal."""
    for version in (1, 2):
        (tmp_path / f"..{version}").mkdir()
        (tmp_path / f"..{version}" / "assignment.json").write_text(_text(version))
        os.utime(tmp_path / f"..{version}" / "assignment.json", ns=(0, 0))
    (tmp_path / "..data").symlink_to("..1")
    file.symlink_to("..data/assignment.json")
    assert _check(source)
    (tmp_path / "..next").symlink_to("..2")
    (tmp_path / "..next").replace(tmp_path / "..data")
    assert _check(source)
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


async def test_watch_goes_on_until_cancelled(
    file: Path, source: AssignmentFile, taker: _Taker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch applies one change after another until it is cancelled."""
    monkeypatch.setattr("tuplewire_service.worker.assignment._POLL_SECONDS", 0.01)
    watch = asyncio.create_task(source.watch())
    for version in (1, 2, 3):
        _write(file, version)
        await asyncio.wait_for(taker.reached[version].wait(), 5)
    watch.cancel()
    await asyncio.gather(watch, return_exceptions=True)
    assert taker.versions == [1, 2, 3]
