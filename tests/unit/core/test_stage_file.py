"""The file shared by all attempts of sinks: one descriptor, and space that is freed."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from tuplewire.errors import ResourceLimitError
from tuplewire.values.group import TaskGroup
from tuplewire_service.worker import stage_file
from tuplewire_service.worker.stage_file import StageFile, StageFiles

MIB = 1 << 20


def group(task: int, size: int = 10) -> TaskGroup:
    """Return a message to a task."""
    return TaskGroup.of(task, [bytes([task % 256]) * size])


def descriptors() -> set[str]:
    """Return the unnamed files that this process has open."""
    found = set()
    for each in Path("/proc/self/fd").iterdir():
        try:
            found.add(str(each.readlink()))
        except FileNotFoundError:
            continue  # the descriptor of the listing itself
    return {each for each in found if each.endswith("(deleted)")}


def read(file: StageFile, places: list[tuple[int, int]]) -> list[TaskGroup]:
    """Return the groups at some places of a file."""
    return [group for place in places for group in file.read(*place)]


def held_bytes(file: StageFile) -> int:
    """Return the disk space that the file uses."""
    return os.fstat(file._shared.file.fileno()).st_blocks * 512


def test_attempts_are_read_as_they_were_written(tmp_path: Path) -> None:
    """Attempts that are written alternately are read unchanged."""
    files = StageFiles(str(tmp_path))
    one, two = files.attempt(), files.attempt()
    places = [*one.write([group(1), group(2, 0)]), *one.write([])]
    others = two.write([group(3, 9000)])
    places += one.write([group(4, 5000)])
    two.write([group(5)])
    assert [each.task for each in read(one, places)] == [1, 2, 4]
    assert [each.data for each in read(one, places)] == [group(1).data, b"", group(4, 5000).data]
    assert [each.data for each in read(two, others)] == [group(3, 9000).data]
    two.close()
    assert [each.data for each in read(one, places)] == [group(1).data, b"", group(4, 5000).data]
    one.close()


def test_a_thousand_attempts_have_one_descriptor(tmp_path: Path) -> None:
    """The descriptor is closed with the last attempt."""
    before = descriptors()
    files = StageFiles(str(tmp_path))
    attempts = [files.attempt() for _ in range(1000)]
    for each in attempts:
        each.write([group(1)])
    assert len(descriptors() - before) == 1
    for each in attempts:
        each.close()
    assert descriptors() == before
    again = files.attempt()
    assert [each.task for each in read(again, again.write([group(7)]))] == [7]
    again.close()
    assert descriptors() == before


@pytest.mark.skipif(not hasattr(stage_file._libc, "fallocate"), reason="this system frees no part of a file")
def test_space_comes_back_with_each_attempt(tmp_path: Path) -> None:
    """Closing an attempt frees its blocks, even if its pieces are small."""
    files = StageFiles(str(tmp_path))
    stays = files.attempt()
    place = stays.write([group(1)])
    large = files.attempt()
    large.write([group(2, 4 * MIB)])
    small = [files.attempt() for _ in range(100)]
    for each in small:
        each.write([group(3)])
    assert held_bytes(stays) >= 4 * MIB + 101 * 4096
    for each in (large, *small):
        each.close()
    assert held_bytes(stays) <= 64 * 1024
    assert [each.task for each in read(stays, place)] == [1]
    stays.close()


def test_another_file_begins_before_the_system_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the size limit, new attempts use a new file; existing attempts keep the old one."""
    monkeypatch.setattr(stage_file, "_MOST_BYTES", MIB)
    before = descriptors()
    files = StageFiles(str(tmp_path))
    first = files.attempt()
    place = first.write([group(1, 2 * MIB)])
    second = files.attempt()
    second.write([group(2)])
    assert len(descriptors() - before) == 2
    place += first.write([group(3)])
    assert [each.task for each in read(first, place)] == [1, 3]
    first.close()
    assert len(descriptors() - before) == 1
    second.close()
    assert descriptors() == before


def test_what_cannot_be_written_is_an_error_with_the_setting(tmp_path: Path) -> None:
    """A missing directory and a failed write are errors that name the setting."""
    with pytest.raises(ResourceLimitError, match="set its staging-directory"):
        StageFiles(str(tmp_path / "none")).attempt()
    attempt = StageFiles(str(tmp_path)).attempt()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, limits[1]))
    try:
        with pytest.raises(ResourceLimitError, match="set its staging-directory"):
            attempt.write([group(1, 2 * MIB)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    attempt.close()
