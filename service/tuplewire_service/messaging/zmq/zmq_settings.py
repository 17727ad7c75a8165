"""The settings of the ZeroMQ transport, and its endpoints: `tcp`, and `ipc` in local mode."""

from __future__ import annotations

import contextlib
import os
import random
import stat
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tuplewire.errors import BindError, ConfigError
from tuplewire.settings.config import MIB
from tuplewire.settings.settings import SECONDS_OR_ZERO, choice, count, storm_setting
from tuplewire_service.messaging.claimed_socket import claimed_socket
from tuplewire_service.messaging.transport_settings import TransportSettings
from tuplewire_service.messaging.zmq.frames import Allowance

_MAX_PATH = 107
"""Maximum length of a Unix socket's path in bytes."""
_FREE_PORTS = range(49152, 65536)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZmqSettings(TransportSettings):
    """The settings of all transports, and of Storm's plug-in under Storm's keys."""

    REFUSED = (*TransportSettings.REFUSED, "tuplewire.zmq.")  # every key of this transport is a key of Storm

    threads: int = storm_setting("zmq.threads", count(), 1, "number of ZeroMQ's I/O threads")
    linger_seconds: float = storm_setting(
        "zmq.linger.millis", SECONDS_OR_ZERO, 5.0, "maximum time to send the last written data after a close"
    )
    hwm: int = storm_setting(
        "zmq.hwm",
        count(0),
        1000,
        "maximum number of unread messages of a stream in flight; 0: only the limit in bytes applies",
    )
    cluster_mode: str = storm_setting(
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
    return f"ipc://{_ipc_path(port)}"


def _ipc_path(port: int) -> Path:
    directory = Path(tempfile.gettempdir()) / f"tuplewire-zmq-{os.getuid()}"
    with contextlib.suppress(FileExistsError):  # also for a dangling link
        directory.mkdir(mode=0o700)
    found = directory.lstat()  # another user could choose a link's target
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ConfigError(
            f"{directory} is not a directory of this user alone: remove it, or chmod 700 it if it is yours, "
            "or set TMPDIR to another directory"
        )
    path = directory / f"{port}.ipc"
    if len(os.fsencode(path)) > _MAX_PATH:
        raise ConfigError(f"{path} is too long for a Unix socket; set TMPDIR to a shorter path")
    return path


def claimed_ipc_port(port: int, claim: ExitStack) -> int:
    """Claim a port of local mode, or any free one for 0, until `claim` is closed. Raises BindError."""
    # In random order, because several workers may start at the same time.
    for candidate in [port] if port else random.sample(_FREE_PORTS, len(_FREE_PORTS)):
        with contextlib.suppress(BindError):
            claim.enter_context(claimed_socket(_ipc_path(candidate)))
            return candidate
    raise BindError(f"cannot listen on {ipc_endpoint(port)}: it is in use; choose another port, or 0")
