"""Files that are reloaded when they change."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from helpers.certificates import swap_data
from helpers.logged import logged

from tuplewire.errors import ConfigError
from tuplewire.identity.files import WatchedFiles


def _number(file: Path) -> int:
    try:
        return int(file.read_text(encoding="utf-8"))
    except ValueError:
        raise ConfigError("not a number") from None
    except OSError:
        raise ConfigError("not there") from None


def test_change_is_seen(tmp_path: Path) -> None:
    """A file is reloaded only after it was written."""
    file = tmp_path / "file"
    file.write_text("1")
    reads: list[int] = []

    def read() -> int:
        reads.append(_number(file))
        return reads[-1]

    watched = WatchedFiles([file], read)
    assert [watched.get(), watched.get()] == [1, 1]
    assert reads == [1]
    file.write_text("23")
    assert watched.get() == 23


def test_swapped_link_is_seen(tmp_path: Path) -> None:
    """A replaced folder behind a symbolic link, as in Kubernetes, is detected."""
    for version in ("1", "2"):
        (tmp_path / f"..{version}").mkdir()
        (tmp_path / f"..{version}" / "file").write_text(version)
    file = tmp_path / "file"
    file.symlink_to("..data/file")
    swap_data(tmp_path, tmp_path / "..1")
    watched = WatchedFiles([file], lambda: _number(file))
    assert watched.get() == 1
    swap_data(tmp_path, tmp_path / "..2")
    assert watched.get() == 2


@pytest.mark.parametrize("broken", ["nonsense", None])
def test_broken_file_keeps_what_was(
    tmp_path: Path, broken: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """An unreadable file is counted and logged once, and the previous value is used until it is fixed."""
    file = tmp_path / "file"
    file.write_text("1")
    watched = WatchedFiles([file], lambda: _number(file))
    watched.get()
    with caplog.at_level(logging.WARNING):
        if broken is None:
            file.unlink()
        else:
            file.write_text(broken)
        assert [watched.get(), watched.get()] == [1, 1]
    assert watched.errors == 1
    assert len(caplog.records) == len(logged(caplog, "files.unusable")) == 1
    file.write_text("234")
    with caplog.at_level(logging.INFO):
        assert watched.get() == 234
    assert [each["files"] for each in logged(caplog, "files.changed")] == [str(file)]


def test_never_good_is_an_error(tmp_path: Path) -> None:
    """Without a previous value, every call raises an error."""
    file = tmp_path / "file"
    watched = WatchedFiles([file], lambda: _number(file))
    for _ in range(2):
        with pytest.raises(ConfigError, match="not there"):
            watched.get()
    file.write_text("1")
    assert watched.get() == 1


def test_files_that_change_while_they_are_read_belong_together(tmp_path: Path) -> None:
    """Files that change while they are read are read again, so that their versions match."""
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("1")
    two.write_text("1")
    rotations = iter(["22"])

    def read() -> tuple[str, str]:
        first = one.read_text()
        for fresh in rotations:
            one.write_text(fresh)
            two.write_text(fresh)
        return first, two.read_text()

    assert WatchedFiles([one, two], read).get() == ("22", "22")
