"""The settings that only the ZeroMQ transport has."""

from __future__ import annotations

from dataclasses import dataclass

from tuplewire.config import declared
from tuplewire.errors import ConfigError
from tuplewire_service.messaging.settings import TransportSettings
from tuplewire_service.messaging.zmq.flow import Window

_MODES = ("local", "distributed")


@dataclass(frozen=True, slots=True, kw_only=True)
class ZmqSettings(TransportSettings):
    """Those of every transport, and Storm's plug-in's under Storm's keys."""

    threads: int = declared(1, "ZeroMQ's I/O threads", key="zmq.threads", storm="zmq.threads")
    linger_millis: int = declared(
        5000,
        "how long what was written last may take to go out after a close",
        key="zmq.linger.millis",
        storm="zmq.linger.millis",
    )
    hwm: int = declared(
        1000,
        "messages of a stream that may be on their way and not read; 0: only the bound in bytes counts",
        key="zmq.hwm",
        storm="zmq.hwm",
    )
    cluster_mode: str = declared(
        "distributed",
        "local binds and connects Unix sockets (ipc) in place of tcp",
        key="storm.cluster.mode",
        storm="storm.cluster.mode",
    )
    ipc_directory: str = declared(
        "",
        "where those are (default: a temporary directory that belongs to the user)",
        key="tuplewire.zmq.ipc_directory",
    )
    max_streams: int = declared(
        20_000, "streams that a server serves at once", key="tuplewire.zmq.max_streams"
    )

    def __post_init__(self) -> None:
        least = {"zmq.threads": (self.threads, 1), "tuplewire.zmq.max_streams": (self.max_streams, 1)}
        least |= {"zmq.linger.millis": (self.linger_millis, 0), "zmq.hwm": (self.hwm, 0)}
        for key, (value, minimum) in least.items():
            if not isinstance(value, int) or value < minimum:
                raise ConfigError(f"{key} must be a whole number from {minimum} on, not {value!r}")
        if self.cluster_mode not in _MODES:
            raise ConfigError(f"storm.cluster.mode must be {' or '.join(_MODES)}, not {self.cluster_mode!r}")

    @property
    def stream_window(self) -> Window:
        """What one side of a stream may have sent that the other has not read."""
        return Window(self.hwm or 2**32)
