"""Files that a worker reads again when they change; with invalid bytes, the old value stays current."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.logged import logged
from helpers.secured import Authority, files_of, swap_data
from helpers.topology import as_json

from tuplewire.errors import ConfigError
from tuplewire.identity.files import _MAX_READS, WatchedFiles, read_tokens
from tuplewire_service.config.config_sources import load, read_conf
from tuplewire_service.security.certificates import read_identity
from tuplewire_service.security.permissions import read_rules
from tuplewire_service.worker.assignment import Assignment, load_assignment


def _number(file: Path) -> int:
    try:
        text = file.read_text(encoding="utf-8")
        if text == "defect":
            raise KeyError(text)
        return int(text)
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


@pytest.mark.parametrize("broken", ["nonsense", "defect", None])
def test_broken_file_keeps_what_was(
    tmp_path: Path, broken: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """An unusable file is counted and logged once; the previous value stays. Without one, it is an error."""
    file = tmp_path / "file"
    watched = WatchedFiles([file], lambda: _number(file))
    for _ in range(2):
        with pytest.raises(ConfigError, match="not there"):
            watched.get()
    file.write_text("1")
    assert watched.get() == 1
    caplog.clear()
    errors = watched.errors
    with caplog.at_level(logging.WARNING):
        if broken is None:
            file.unlink()
        else:
            file.write_text(broken)
        assert [watched.get(), watched.get()] == [1, 1]
    assert watched.errors == errors + 1
    assert len(caplog.records) == len(logged(caplog, "files.reload_failed")) == 1
    file.write_text("234")
    with caplog.at_level(logging.INFO):
        assert watched.get() == 234
    assert [each["files"] for each in logged(caplog, "files.reloaded")] == [str(file)]


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


def test_files_that_change_at_every_read_are_read_again_later(tmp_path: Path) -> None:
    """If a file changes during each of the limited reads, the next call returns its last content."""
    file = tmp_path / "file"
    file.write_text("")
    sizes = iter(range(1, _MAX_READS + 1))

    def read() -> str:
        text = file.read_text()
        if size := next(sizes, 0):
            file.write_text("x" * size)
        return text

    watched = WatchedFiles([file], read)
    assert len(watched.get()) == _MAX_READS - 1
    assert len(watched.get()) == _MAX_READS


def test_defect_at_the_first_read_is_an_error_of_the_configuration(tmp_path: Path) -> None:
    """An unexpected exception of the first read is a ConfigError with the name of the file."""
    file = tmp_path / "file"
    file.write_text("defect")
    with pytest.raises(ConfigError, match=f"{file} cannot be read: KeyError"):
        WatchedFiles([file], lambda: _number(file)).get()


SEED = 13
ROUNDS = 150
WORST = [
    b"",
    b"\0" * 1000,
    b"[" * 100_000,
    b"{" * 100_000,
    b"a=" + b"[" * 100_000,
    b'{"a":' * 100_000,
    b"a." * 100_000 + b"a=1",
    b"[[client]]\nsend = " + b"{a=" * 10_000,
    b"\xed\xa0\x80",
    b"\xff" * 100,
    b"\xef\xbb\xbf{}",
    b'"\\ud800"',
    b"9" * 10_000,
    b"-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n",
    b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    b"name\x00x " + b"t" * 20,
]
PIECES = [b"", b"\n", *rb'\ud800 [ ] { " - null = * 1e999'.split(), b"\0", b"\xff", b"9" * 30]


def _garbage(valid: bytes) -> Iterator[bytes]:
    """Yield the worst known contents, then the valid content with random changes from a fixed seed."""
    yield from WORST
    chance = random.Random(SEED)
    for _ in range(ROUNDS):
        content = valid
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(content) + 1)
            cut = at + chance.choice([0, 1, 1, 8, 100])
            content = content[:at] + chance.choice([*PIECES, chance.randbytes(3)]) + content[cut:]
        yield content


WORKER = '{"worker_id": "a", "address": "h:1", "tasks": [0, 1], "node": "n", "peer_address": "h:2"}'
TEXTS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "assignment": (f'{{"version": 7, "topology": "t", "workers": [{WORKER}]}}', load_assignment),
    "permissions": (
        '[[client]]\ntokens = ["a"]\nsend = "1,2,10-19"\nreceive = "*"\ncontrol = ["drain"]\n',
        read_rules,
    ),
    "tokens": (f"# tokens\nfirst {'a' * 40}\n{'b' * 40}\n", read_tokens),
}


def _made(name: str, directory: Path) -> tuple[Path, Callable[[], Any]]:
    """Create a file; return it, and a function that reads it and the files that belong to it."""
    if name in TEXTS:
        text, read = TEXTS[name]
        path = directory / name
        path.write_text(text)
        return path, lambda: read(path)
    credentials = files_of(Authority().issue("worker.example"), directory)
    return Path(str(getattr(credentials, name))), lambda: read_identity(credentials)


@pytest.mark.parametrize("name", [*TEXTS, "tls_ca", "tls_certificate", "tls_key"])
def test_garbage_is_a_config_error_that_names_the_file(name: str, tmp_path: Path) -> None:
    """All bytes are read or rejected with a ConfigError, never with another error; so is a missing file."""
    path, load = _made(name, tmp_path)
    refused = 0
    for content in _garbage(path.read_bytes()):
        path.write_bytes(content)
        try:
            value = load()
        except ConfigError as error:
            refused += 1
            assert str(path) in str(error)  # noqa: PT017 - whether it is raised depends on the bytes
            assert len(str(error)) < 2000 + len(str(tmp_path)) * 4  # noqa: PT017
        else:
            if isinstance(value, Assignment):
                assert as_json(value).encode()
    assert refused > len(WORST)
    path.unlink()
    with pytest.raises(ConfigError, match="No such file"):
        load()


def test_a_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    """Files may begin with a byte order mark, which Windows editors write."""
    conf = tmp_path / "conf.json"
    conf.write_text("\ufeff" + '{"topology.debug": true}', encoding="utf-8")
    assert read_conf(str(conf)) == {"topology.debug": True}
    settings = tmp_path / "worker.toml"
    settings.write_text("\ufeff" + '# für alle\nworker_id = "w9"\n', encoding="utf-8")
    assert load({}, {}, settings).config.worker_id == "w9"
    rules = tmp_path / "rules.toml"
    rules.write_text("\ufeff" + '# für alle\n[[client]]\ntokens = ["etl"]\nsend = "*"\n', encoding="utf-8")
    read_rules(rules)
    assignment = tmp_path / "assignment.json"
    content = {"version": 1, "topology": "t", "workers": [{"worker_id": "w", "address": "h:1", "tasks": [1]}]}
    assignment.write_text("\ufeff" + json.dumps(content), encoding="utf-8")
    assert load_assignment(assignment).version == 1
