"""Takes a Unix socket's path for this process alone, before anything binds it.

gRPC itself lets a second server take over a live socket without a word, and the end of either then removes
the file for both. So a lock file decides between workers, and a connect tells a live socket from a left-over.
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
    """Hold the path until the end of the block; BindError when another process has it.

    A socket file that nobody answers on is removed. The lock file PATH.lock stays behind: removing it would
    open a gap in which two processes hold two locks of one name.
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
        os.close(descriptor)


@contextmanager
def file_mode(mode: int) -> Iterator[None]:
    """Let every file made in the block have at most this mode. The umask is the whole process's."""
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
            path.unlink(missing_ok=True)
        except OSError as error:
            raise BindError(
                f"cannot listen on {path}: a socket is there and cannot be tested: {error}"
            ) from error
        else:
            raise BindError(f"cannot listen on {path}: another process listens on it")
