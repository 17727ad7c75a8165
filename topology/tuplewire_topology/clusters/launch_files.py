"""Files and directories of worker processes, which may have another user. Source: Storm's `Container`."""

from __future__ import annotations

import os
from pathlib import Path

from tuplewire.processes.child import find_user, not_permitted

PRIVATE = 0o600
"""The mode of a file that only its owner can access."""


def directory_for(path: Path, user: str | None) -> Path:
    """Create and return a directory for the logs of processes, also of another user."""
    path.mkdir(parents=True, exist_ok=True)
    if user is not None:  # the other user needs to reach files in it, not to list them
        path.chmod(0o711)
    return path


def directory_of(path: Path, user: str | None) -> Path:
    """Create and return a directory in which only the processes' user may write; see write_private()."""
    path.mkdir(mode=0o700)
    _give(path, user)
    return path


def write_private(path: Path, content: bytes, user: str | None) -> None:
    """Write a new file that only the processes' user may read; None: this process's user.

    Raises ConfigError for a user that does not exist, and LaunchError without the right to change the owner.
    """
    path.touch(PRIVATE, exist_ok=False)
    path.write_bytes(content)
    _give(path, user)


def _give(path: Path, user: str | None) -> None:
    if user is not None:
        try:
            os.chown(path, find_user(user).pw_uid, -1)
        except PermissionError as error:
            raise not_permitted("a process", user) from error
