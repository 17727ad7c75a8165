"""Exclusive use of a Unix socket's path, claimed before a server binds it.

gRPC lets a second server replace a live socket without an error, and the first server that stops removes the
file of both. So a lock file decides between workers, and a connection attempt identifies a stale socket.
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tuplewire.errors import BindError

_CONNECT_SECONDS = 2.0


@contextmanager
def claimed_socket(path: Path) -> Iterator[None]:
    """Reserve the path during the block. Raise BindError if another process uses it.

    A stale socket file is removed. The lock is the file PATH.lock.
    """
    lock = path.with_name(path.name + ".lock")
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise BindError(
            f"cannot listen on {path}: cannot open {lock}: {error.strerror}; "
            "give --listen-unix a directory that exists and is writable"
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BindError(f"cannot listen on {path}: another worker uses it (it holds {lock})") from error
        _remove_left_over(path)
        yield
    finally:
        # The lock file remains. If it were removed, two processes could lock two files of the same name.
        os.close(descriptor)


@contextmanager
def file_mode(mode: int) -> Iterator[None]:
    """Limit the mode of files that are created in the block. The umask applies to the whole process."""
    before = os.umask(0o777 & ~mode)
    try:
        yield
    finally:
        os.umask(before)


def _remove_left_over(path: Path) -> None:
    try:
        kind = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(kind):
        raise BindError(f"cannot listen on {path}: a file that is not a socket is there; remove it")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_CONNECT_SECONDS)
        try:
            probe.connect(os.fspath(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)  # stale: no server accepts connections
        except OSError as error:
            raise BindError(
                f"cannot listen on {path}: a socket is there and cannot be tested: {error}"
            ) from error
        else:
            raise BindError(f"cannot listen on {path}: another process listens on it")
