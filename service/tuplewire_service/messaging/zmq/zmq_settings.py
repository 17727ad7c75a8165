"""The settings of the ZeroMQ transport, and its endpoints: `tcp`, and `ipc` in local mode.

Used by zmq_transport.py and zmq_sockets.py. Owns the lock file of each bound local port. Not thread-safe.
Design: docs/design/sessions.md (ZeroMQ between workers).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tuplewire.errors import BindError, ConfigError
from tuplewire.settings.config import MIB
from tuplewire.settings.settings import SECONDS_OR_ZERO, choice, count, storms
from tuplewire_service.messaging.transport_settings import TransportSettings
from tuplewire_service.messaging.zmq.frames import Allowance

_MAX_PATH = 107
"""Maximum length of a Unix socket's path in bytes."""
_FREE_PORTS = range(49152, 65536)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZmqSettings(TransportSettings):
    """The settings of all transports, and of Storm's plug-in under Storm's keys."""

    REFUSED = (*TransportSettings.REFUSED, "tuplewire.zmq.")  # every key of this transport is a key of Storm

    threads: int = storms("zmq.threads", count(), 1, "number of ZeroMQ's I/O threads")
    linger_seconds: float = storms(
        "zmq.linger.millis",
        SECONDS_OR_ZERO,
        5.0,
        "maximum time to send the last written data after a close",
    )
    hwm: int = storms(
        "zmq.hwm",
        count(0),
        1000,
        "maximum number of unread messages of a stream in flight; 0: only the limit in bytes applies",
    )
    cluster_mode: str = storms(
        "storm.cluster.mode",
        choice(["local", "distributed"]),
        "distributed",
        "local: use Unix sockets (ipc) in the user's temporary directory instead of tcp",
    )

    @property
    def stream_window(self) -> Allowance:
        """The amount that one side of a stream may send before the other side reads it."""
        return Allowance(self.hwm or 2**32, 4 * MIB)


def tcp_endpoint(host: str, port: int) -> str:
    """Return the endpoint of a TCP address."""
    return f"tcp://{host}:{port or '*'}"


def ipc_endpoint(port: int) -> str:
    """Return the endpoint of a port in local mode. Source: Storm's `ZMQContext`, `ipc?`."""
    path = _directory() / f"{port}.ipc"
    if len(os.fsencode(path)) > _MAX_PATH:
        raise ConfigError(f"{path} is too long for a Unix socket; set TMPDIR to a shorter path")
    return f"ipc://{path}"


def _directory() -> Path:
    path = Path(tempfile.gettempdir()) / f"tuplewire-zmq-{os.getuid()}"
    with contextlib.suppress(FileExistsError):  # also for a dangling link
        path.mkdir(mode=0o700)
    found = path.lstat()  # another user could choose a link's target
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ConfigError(
            f"{path} is not a directory of this user alone: remove it, or chmod 700 it if it is yours, or "
            "set TMPDIR to another directory"
        )
    return path


class IpcPort:
    """A port of local mode, locked by this process; libzmq itself would take over a port in use."""

    def __init__(self, port: int) -> None:
        """Lock a port, or any free one for 0. Raises BindError if it is in use."""
        for candidate in [port] if port else random.sample(_FREE_PORTS, len(_FREE_PORTS)):
            self.port = candidate
            self.endpoint = ipc_endpoint(candidate)
            if self._lock(Path(self.endpoint.removeprefix("ipc://")).with_suffix(".lock")):
                return
        raise BindError(f"cannot listen on {self.endpoint}: it is in use; choose another port, or 0")

    def _lock(self, path: Path) -> bool:
        try:
            held = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        except OSError as error:
            raise BindError(f"cannot listen on {self.endpoint}: {error.strerror}") from error
        with contextlib.suppress(OSError):
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The previous holder may have removed the file after it was opened here.
            if os.fstat(held).st_ino == path.stat().st_ino:
                self._held, self._path = held, path
                return True
        os.close(held)
        return False

    def release(self) -> None:
        """Unlock the port after the socket is closed; libzmq does not remove the socket's file."""
        Path(self.endpoint.removeprefix("ipc://")).unlink(missing_ok=True)
        self._path.unlink(missing_ok=True)
        os.close(self._held)
