"""Token files, atomic writes, and files that are read again after they change.

Clients read tokens and certificates for connections; workers read tokens, certificates and permissions, and
write their state. Owns the last valid content of watched files. Thread-safe. Design: docs/design/identity.md.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from tuplewire.errors import ConfigError
from tuplewire.text.events import event_logger

logger = event_logger(__name__)

_Value = TypeVar("_Value")
_FileStates = tuple[tuple[int, ...] | None, ...]

AUTHORIZATION_KEY = "authorization"
"""The key of the token in the metadata of a call."""
MIN_LENGTH, MAX_LENGTH = 16, 4096
"""Limits for a token, in characters. gRPC accepts metadata of 8 KiB."""
_MAX_READS = 10
UNREADABLE = "name a file that this process may read"
"""The advice in errors about a file that is missing, a folder, or not readable."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token, and the name of its holder in permission rules. The secret is never printed."""

    name: str
    secret: str = field(repr=False)

    @property
    def bearer_value(self) -> str:
        """The metadata value with the token."""
        return f"Bearer {self.secret}"


def read_tokens(path: Path) -> tuple[Token, ...]:
    """Read a token file with a line `TOKEN` or `NAME TOKEN` for each token. `#` starts a comment line.

    Programs send the first token; a worker accepts all of them. Raises ConfigError, which contains no token,
    if the file is unreadable or without a token, or a token has an invalid length or is not printable ASCII.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"cannot read the token file {path}: {error.strerror}; {UNREADABLE}") from error
    except UnicodeDecodeError:
        raise ConfigError(f"the token file {path} is not text: write tokens as letters and digits") from None
    tokens = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) > 2:
            raise ConfigError(f"line {number} of the token file {path} is not TOKEN or NAME TOKEN: fix it")
        name, secret = words if len(words) == 2 else ("", words[0])
        if not name.isprintable():
            raise ConfigError(f"the name in line {number} of the token file {path} is not printable")
        if not MIN_LENGTH <= len(secret) <= MAX_LENGTH or not (secret.isascii() and secret.isprintable()):
            raise ConfigError(
                f"the token in line {number} of {path} is not {MIN_LENGTH} to {MAX_LENGTH} printable ASCII "
                "characters; make one with: openssl rand -hex 32"
            )
        tokens.append(Token(name, secret))
    if not tokens:
        raise ConfigError(f"the token file {path} has no token; make one with: openssl rand -hex 32")
    return tuple(tokens)


def write_atomically(path: Path, text: str) -> None:
    """Replace a file atomically: readers get the complete old or the complete new text. Raises OSError."""
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


class WatchedFiles(Generic[_Value]):
    """The content of files, which are read again when a file or a link in its path changes. Thread-safe.

    Links change in a Secret of Kubernetes. Guarantee: invalid content never replaces valid content. It is
    counted in `errors` and logged once. get() costs one stat of each file.
    """

    def __init__(self, paths: Sequence[Path], load: Callable[[], _Value]) -> None:
        """Watch files without reading them yet. `load` reads them all and raises ConfigError if invalid."""
        self.errors = 0
        """The number of times that the content was invalid, at the first read or after a change."""
        self._paths = paths
        self._load = load
        self._lock = threading.RLock()  # audit hooks run while files are opened
        self._last_states: _FileStates | None = None
        self._value: _Value | None = None
        self._path_text = ", ".join(map(str, paths))

    def get(self) -> _Value:
        """Return the last valid content of the files. Raise ConfigError if there has never been any."""
        problem, changed = None, False
        with self._lock:
            states = tuple(map(_state_of, self._paths))
            value = self._value
            if value is None:
                value = self._read(states)
            elif states != self._last_states:
                changed = True
                try:
                    value = self._read(states)
                except ConfigError as error:
                    problem = error
        if problem is not None:
            reason = f"{problem}; the old content remains"
            logger.warning("files.reload_failed", extra={"files": self._path_text, "reason": reason})
        elif changed:
            logger.info("files.reloaded", extra={"files": self._path_text})
        return value

    def _read(self, states: _FileStates) -> _Value:
        """Read the files and return their content. Raises ConfigError if it is invalid."""
        for _ in range(_MAX_READS):
            problem = None
            self._last_states = states
            try:
                value = self._load()
            except ConfigError as error:
                problem = error
            except Exception as error:  # noqa: BLE001 - unexpected content must not end a worker
                problem = ConfigError(f"{self._path_text} cannot be read: {error!r}")
            states = tuple(map(_state_of, self._paths))
            if states == self._last_states:  # no file was replaced while the files were read
                break
        if problem is not None:
            self.errors += 1
            raise problem
        self._value = value
        return value


def _state_of(path: Path) -> tuple[int, ...] | None:
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_dev, state.st_ino, state.st_ctime_ns, state.st_mtime_ns, state.st_size
