"""Files that others write or read meanwhile: read again once they have changed, and replaced as a whole.

The first of them are bearer tokens, which programs show or know.
"""

from __future__ import annotations

import hmac
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from tuplewire.errors import ConfigError
from tuplewire.text.events import event_logger

logger = event_logger(__name__)

_Value = TypeVar("_Value")
_Look = tuple[tuple[int, ...] | None, ...]

AUTHORIZATION = "authorization"
"""The key of a call's metadata under which a token is shown."""
MIN_LENGTH, MAX_LENGTH = 16, 4096
"""Of a token, in characters: gRPC takes metadata of 8 KiB."""
_SCHEME = "Bearer "
_ATTEMPTS = 10
UNREADABLE = "name a file that this process may read"
"""What to do about a file that is not there, a folder, or somebody else's."""


@dataclass(frozen=True, slots=True)
class Token:
    """One token, and the name that rules have for whoever shows it. The token itself is never printed."""

    name: str
    secret: str = field(repr=False)

    @property
    def shown(self) -> str:
        """The value of the metadata that shows it."""
        return _SCHEME + self.secret


def read_tokens(path: Path) -> tuple[Token, ...]:
    """Read a token file: a line `TOKEN` or `NAME TOKEN` each; empty lines and those with # are left out.

    Programs show the first; a worker knows them all. Raises ConfigError, which never quotes a token, for a
    file that is not readable, has none, or has one that is too short or not printable ASCII.
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
            raise ConfigError(f"line {number} of the token file {path} is neither TOKEN nor NAME TOKEN")
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


def find_token(shown: str, tokens: Iterable[Token]) -> Token | None:
    """Return the token that is shown (`Bearer ...`), if it is one of these.

    Takes as long for a token that is nearly right as for any other.
    """
    found = None
    value = shown.encode()
    for token in tokens:
        if hmac.compare_digest(value, token.shown.encode()):
            found = token
    return found


def write_atomically(path: Path, text: str) -> None:
    """Replace a file, so that whoever reads it sees the old or the new whole; OSError."""
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


class WatchedFiles(Generic[_Value]):
    """Reads files when they have changed, also where a link in their path has, as in a Secret of Kubernetes.

    Guarantee: what does not hold together never replaces what does; it is counted in `errors`, and logged,
    once. Thread-safe; to ask costs one stat of each file.
    """

    def __init__(self, paths: Sequence[Path], load: Callable[[], _Value]) -> None:
        """Read nothing yet. load: reads all of the files; raises ConfigError."""
        self.errors = 0
        """How often changed files could not be used."""
        self._paths = paths
        self._load = load
        self._lock = threading.RLock()  # audit hooks run while files are opened
        self._seen: _Look | None = None
        self._value: _Value | None = None
        self._named = ", ".join(map(str, paths))

    def get(self) -> _Value:
        """Return what the files hold; ConfigError when they have never held anything of use."""
        problem, news = None, False
        with self._lock:
            look = self._look()
            if look != self._seen:
                news = self._value is not None
                problem = self._read(look)
            if self._value is None:
                self._value = self._load()
            value = self._value
        if problem is not None and news:
            logger.warning("files.unusable", extra={"reason": f"{problem}; what was read before stays"})
        elif news:
            logger.info("files.changed", extra={"files": self._named})
        return value

    def _look(self) -> _Look:
        return tuple(map(_state_of, self._paths))

    def _read(self, look: _Look) -> ConfigError | None:
        """Read the files; return the error if their content is invalid."""
        for _ in range(_ATTEMPTS):
            problem = None
            try:
                value = self._load()
            except ConfigError as error:
                problem = error
            except Exception as error:  # noqa: BLE001 - bytes that nobody has thought of must not end a worker
                problem = ConfigError(f"{self._named} cannot be read: {error!r}")
            before, look = look, self._look()
            if look == before:  # nothing was exchanged while we read
                break
        self._seen = look
        if problem is None:
            self._value = value
        else:
            self.errors += 1
        return problem


def _state_of(path: Path) -> tuple[int, ...] | None:
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_dev, state.st_ino, state.st_ctime_ns, state.st_mtime_ns, state.st_size
