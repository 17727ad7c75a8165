"""What some files hold, read again once one of them has changed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from tuplewire.errors import ConfigError

logger = logging.getLogger(__name__)

_Value = TypeVar("_Value")
_Look = tuple[tuple[int, ...] | None, ...]
_ATTEMPTS = 10
UNREADABLE = "name a file that this process may read"
"""What to do about a file that is not there, a folder, or somebody else's."""


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
        self._lock = threading.Lock()
        self._seen: _Look | None = None
        self._value: _Value | None = None
        self._named = ", ".join(map(str, paths))

    def get(self) -> _Value:
        """Return what the files hold; ConfigError when they have never held anything of use."""
        with self._lock:
            look = self._look()
            if look != self._seen:
                self._read(look)
            if self._value is None:
                self._value = self._load()
            return self._value

    def _look(self) -> _Look:
        return tuple(map(_state_of, self._paths))

    def _read(self, look: _Look) -> None:
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
            if self._value is not None:
                logger.info("files.changed", extra={"files": self._named})
            self._value = value
            return
        self.errors += 1
        if self._value is not None:
            logger.warning("files.unusable", extra={"reason": f"{problem}; what was read before stays"})


def _state_of(path: Path) -> tuple[int, ...] | None:
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_dev, state.st_ino, state.st_ctime_ns, state.st_mtime_ns, state.st_size
