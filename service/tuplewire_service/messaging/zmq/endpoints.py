"""Where sockets are bound and found: `tcp`, and `ipc` in local mode."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import tempfile
from pathlib import Path

from tuplewire.errors import BindError, ConfigError
from tuplewire_service.messaging.zmq.zmq_settings import ZmqSettings

_MAX_PATH = 107
"""Bytes of a Unix socket's path."""
_FREE_PORTS = range(49152, 65536)


def tcp_endpoint(host: str, port: int) -> str:
    """Return the endpoint of a TCP address."""
    return f"tcp://{host}:{port or '*'}"


def ipc_endpoint(settings: ZmqSettings, port: int) -> str:
    """Return the endpoint that stands for a port in local mode. Source: Storm's `ZMQContext`, `ipc?`."""
    path = _directory(settings) / f"{port}.ipc"
    if len(os.fsencode(path)) > _MAX_PATH:
        raise ConfigError(f"{path} is too long for a Unix socket; set tuplewire.zmq.ipc_directory")
    return f"ipc://{path}"


def _directory(settings: ZmqSettings) -> Path:
    if settings.ipc_directory:
        return Path(settings.ipc_directory)
    path = Path(tempfile.gettempdir()) / f"tuplewire-zmq-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    if path.stat().st_uid != os.getuid():
        raise ConfigError(f"{path} belongs to another user; set tuplewire.zmq.ipc_directory")
    return path


class IpcPort:
    """A port of local mode that this process holds; libzmq itself would take one over that is in use."""

    def __init__(self, settings: ZmqSettings, port: int) -> None:
        """Hold a port, or any free one for 0; BindError when it is in use."""
        for candidate in [port] if port else random.sample(_FREE_PORTS, len(_FREE_PORTS)):
            self.port = candidate
            self.endpoint = ipc_endpoint(settings, candidate)
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
            if os.fstat(held).st_ino == path.stat().st_ino:  # it was not removed in between
                self._held, self._path = held, path
                return True
        os.close(held)
        return False

    def release(self) -> None:
        """Let others have it, once the socket is closed; libzmq leaves its file there."""
        Path(self.endpoint.removeprefix("ipc://")).unlink(missing_ok=True)
        self._path.unlink(missing_ok=True)
        os.close(self._held)
