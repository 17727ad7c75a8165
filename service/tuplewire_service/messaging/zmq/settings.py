"""The settings that only the ZeroMQ transport has."""

from __future__ import annotations

from dataclasses import dataclass

from tuplewire.errors import ConfigError
from tuplewire_service.messaging.sessions.settings import TransportSettings, keyed
from tuplewire_service.messaging.zmq.flow import Window

_MODES = ("local", "distributed")


@dataclass(frozen=True, slots=True, kw_only=True)
class ZmqSettings(TransportSettings):
    """TransportSettings, and those of Storm's plug-in under Storm's keys.

    threads (`zmq.threads`): ZeroMQ's I/O threads. linger_millis (`zmq.linger.millis`): how long what was
    written last may take to go out after a close. hwm (`zmq.hwm`): messages of a stream that may be on their
    way and not read; 0: the bound in bytes alone counts. cluster_mode (`storm.cluster.mode`): `local` binds
    and connects Unix sockets (`ipc`) in place of `tcp`.
    ipc_directory (`tuplewire.zmq.ipc_directory`): where those are; by default a temporary directory that
    belongs to the user. max_streams (`tuplewire.zmq.max_streams`): streams that a server serves at once.
    """

    threads: int = keyed("zmq.threads", 1)
    linger_millis: int = keyed("zmq.linger.millis", 5000)
    hwm: int = keyed("zmq.hwm", 1000)
    cluster_mode: str = keyed("storm.cluster.mode", "distributed")
    ipc_directory: str = keyed("tuplewire.zmq.ipc_directory", "")
    max_streams: int = keyed("tuplewire.zmq.max_streams", 20_000)

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
