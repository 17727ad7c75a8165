"""Exclusive use of a Unix socket's path, claimed before a server binds it.

gRPC and ZeroMQ let a second server replace a live socket without an error, and the first gRPC server that
stops removes it. So a lock file decides, and a connection attempt identifies a stale socket. Thread-safe.
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

MAX_SOCKET_PATH_BYTES = 107
"""Maximum length of a Unix socket's path on Linux: `sun_path` without its final zero byte."""
_CONNECT_SECONDS = 2.0


@contextmanager
def claim_socket(path: Path) -> Iterator[None]:
    """Reserve the path during the block. Raise BindError if another process uses it.

    A stale socket file is removed. The lock is the file PATH.lock. Both files are removed at the end.
    """
    lock = path.with_name(path.name + ".lock")
    descriptor = _lock_file(path, lock)
    try:
        _remove_stale(path)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)  # ZeroMQ leaves it
    finally:
        # Removed while it is locked: otherwise another worker could lock the file just before it is removed.
        lock.unlink(missing_ok=True)
        os.close(descriptor)


def _lock_file(path: Path, lock: Path) -> int:
    # The previous holder may remove the file between open() and flock(). Such a lock would exclude no worker.
    while True:
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise BindError(
                f"cannot listen on {path}: cannot open {lock}: {error.strerror}; "
                "give a directory that exists and is writable"
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise BindError(f"cannot listen on {path}: a worker holds {lock}; choose another path") from error
        if os.fstat(descriptor).st_nlink:  # else the previous holder has removed the file since it was opened
            return descriptor
        os.close(descriptor)


def _remove_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise BindError(f"cannot listen on {path}: a file that is not a socket is there; remove it")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        # connect() would wait while the queue of a busy server is full: its socket counts as used.
        probe.settimeout(_CONNECT_SECONDS)
        try:
            probe.connect(os.fspath(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)  # stale: no server accepts connections
        except OSError as error:
            raise BindError(
                f"cannot listen on {path}: its socket cannot be tested ({error}); remove it"
            ) from error
        else:
            raise BindError(f"cannot listen on {path}: another process listens on it; choose another path")
