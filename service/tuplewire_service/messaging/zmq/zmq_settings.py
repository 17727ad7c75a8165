"""The settings that only the ZeroMQ transport has."""

from __future__ import annotations

from dataclasses import dataclass

from tuplewire.settings import ANY_TEXT, choice, count, setting, storms
from tuplewire_service.messaging.transport_settings import TransportSettings
from tuplewire_service.messaging.zmq.in_flight import ZmqWindow


@dataclass(frozen=True, slots=True, kw_only=True)
class ZmqSettings(TransportSettings):
    """Those of every transport, and Storm's plug-in's under Storm's keys."""

    threads: int = storms("zmq.threads", count(), 1, "ZeroMQ's I/O threads")
    linger_millis: int = storms(
        "zmq.linger.millis",
        count(0),
        5000,
        "how long, in milliseconds, what was written last may take to go out after a close",
    )
    hwm: int = storms(
        "zmq.hwm",
        count(0),
        1000,
        "messages of a stream that may be on their way and not read; 0: only the bound in bytes counts",
    )
    cluster_mode: str = storms(
        "storm.cluster.mode",
        choice(["local", "distributed"]),
        "distributed",
        "local binds and connects Unix sockets (ipc) in place of tcp",
    )
    ipc_directory: str = setting(
        ANY_TEXT,
        "",
        "where those are (default: a temporary directory that belongs to the user)",
        key="tuplewire.zmq.ipc_directory",
    )
    max_streams: int = setting(
        count(), 20_000, "streams that a server serves at once", key="tuplewire.zmq.max_streams"
    )

    @property
    def stream_window(self) -> ZmqWindow:
        """What one side of a stream may have sent that the other has not read."""
        return ZmqWindow(self.hwm or 2**32)
