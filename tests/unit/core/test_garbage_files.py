"""Files that a worker reads, with invalid bytes: the value that was read before stays current."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.certificates import Authority
from helpers.secured import files_of
from helpers.topology import as_json

from tuplewire.errors import ConfigError
from tuplewire.identity.credentials import Credentials
from tuplewire.identity.files import WatchedFiles, read_tokens
from tuplewire_service.security.certificates import read_identity
from tuplewire_service.security.permissions import read_rules
from tuplewire_service.worker.assignment import Assignment, load_assignment

SEED = 13
ROUNDS = 150
WORST = [
    b"",
    b"\0",
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
PIECES = [
    b"",
    b"\0",
    b"\xff",
    b"[",
    b"]",
    b"{",
    b'"',
    b"\\ud800",
    b"9" * 30,
    b"\n",
    b"-",
    b"1e999",
    b"null",
    b"=",
    b"*",
]


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


class _Kind:
    """A kind of file: its paths, the changed path, and a function that reads all files."""

    def __init__(self, paths: list[Path], changed: Path, load: Callable[[], Any]) -> None:
        self.paths, self.changed, self.load = paths, changed, load


def _assignment(directory: Path) -> _Kind:
    path = directory / "assignment.json"
    workers = [
        {
            "worker_id": "a",
            "address": "127.0.0.1:1",
            "tasks": [0, 1],
            "node": "n",
            "peer_address": "127.0.0.1:2",
        }
    ]
    path.write_text(json.dumps({"version": 7, "topology": "t", "workers": workers}))
    return _Kind([path], path, lambda: load_assignment(path))


def _permissions(directory: Path) -> _Kind:
    path = directory / "rules.toml"
    path.write_text('[[client]]\ntokens = ["a"]\nsend = "1,2,10-19"\nreceive = "*"\ncontrol = ["drain"]\n')
    return _Kind([path], path, lambda: read_rules(path))


def _tokens(directory: Path) -> _Kind:
    path = directory / "tokens"
    path.write_text(f"# tokens\nfirst {'a' * 40}\n{'b' * 40}\n")
    return _Kind([path], path, lambda: read_tokens(path))


def _certificate(changed: str) -> Callable[[Path], _Kind]:
    def make(directory: Path) -> _Kind:
        credentials = _credentials(directory)
        path = Path(str(getattr(credentials, changed)))
        return _Kind(list(credentials.files), path, lambda: read_identity(credentials))

    return make


def _credentials(directory: Path) -> Credentials:
    return files_of(Authority().issue("worker.example"), directory)


KINDS = {
    "assignment": _assignment,
    "permissions": _permissions,
    "tokens": _tokens,
    "CA": _certificate("tls_ca"),
    "certificate": _certificate("tls_certificate"),
    "key": _certificate("tls_key"),
}


@pytest.mark.parametrize("name", KINDS)
def test_garbage_is_a_config_error_that_names_the_file(name: str, tmp_path: Path) -> None:
    """All bytes are either read or rejected with a ConfigError, never with another error."""
    kind = KINDS[name](tmp_path)
    refused = 0
    for content in _garbage(kind.changed.read_bytes()):
        kind.changed.write_bytes(content)
        try:
            value = kind.load()
        except ConfigError as error:
            refused += 1
            assert str(kind.changed) in str(error)  # noqa: PT017 - whether it is raised depends on the bytes
            assert len(str(error)) < 2000 + len(str(tmp_path)) * 4  # noqa: PT017
        else:
            if isinstance(value, Assignment):
                assert as_json(value).encode()
    assert refused > len(WORST)


@pytest.mark.parametrize("name", KINDS)
def test_what_was_read_before_stays(name: str, tmp_path: Path) -> None:
    """For a directory, a missing file or invalid bytes, the old value is used and the error is counted."""
    kind = KINDS[name](tmp_path)
    watched = WatchedFiles(kind.paths, kind.load)
    before = watched.get()
    refused = 0
    for content in WORST:
        kind.changed.write_bytes(content)
        if _is_refused(kind):
            refused += 1
            assert watched.get() is before
            assert watched.errors == refused
    assert refused > len(WORST) // 2
    kind.changed.unlink()
    assert watched.get() is before
    kind.changed.mkdir()
    assert watched.get() is before
    assert watched.errors == refused + 2


def _is_refused(kind: _Kind) -> bool:
    try:
        kind.load()
    except ConfigError:
        return True
    return False


def test_a_reader_with_a_defect_changes_nothing(tmp_path: Path) -> None:
    """An unexpected exception counts as an unusable file: the worker continues with the old value."""
    path = tmp_path / "file"
    path.write_text("good")

    def load() -> str:
        if (text := path.read_text()) != "good":
            raise KeyError(text)
        return text

    watched = WatchedFiles([path], load)
    assert watched.get() == "good"
    path.write_text("worse")
    assert watched.get() == "good"
    assert watched.errors == 1
