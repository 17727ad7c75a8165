"""ZmqContext: the IContext of the ZeroMQ transport."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuplewire.connection.loop import EventLoopThread
from tuplewire.connection.stream import Dial
from tuplewire_service.messaging.base import IConnectionCallback
from tuplewire_service.messaging.streamed.streamed_context import StreamedContext
from tuplewire_service.messaging.zmq.dial import dial_zmq
from tuplewire_service.messaging.zmq.sockets import Sockets
from tuplewire_service.messaging.zmq.zmq_server import ZmqServerConnection
from tuplewire_service.messaging.zmq.zmq_settings import ZmqSettings, ipc_endpoint, tcp_endpoint


class ZmqContext(StreamedContext):
    """Binds a ROUTER and connects DEALERs to it. Source: Storm's `ZMQContext`.

    In local mode (`storm.cluster.mode`) a port is a Unix socket of this machine, whatever the host.
    """

    kind = ZmqSettings
    _settings: ZmqSettings

    def __init__(self) -> None:
        super().__init__()
        self._sockets = Sockets(self._settings)

    def prepare(self, conf: Mapping[str, Any]) -> None:
        """See IContext."""
        super().prepare(conf)
        self._sockets = Sockets(self._settings)

    def _serve(
        self, thread: EventLoopThread, topology_id: str, port: int, callback: IConnectionCallback | None
    ) -> ZmqServerConnection:
        return ZmqServerConnection(thread, topology_id, port, self._settings, callback, self._sockets)

    def _dial(self, thread: EventLoopThread, host: str, port: int) -> Dial:
        settings = self._settings
        local = settings.cluster_mode == "local"
        endpoint = ipc_endpoint(settings, port) if local else tcp_endpoint(host, port)
        return dial_zmq(self._sockets, thread, endpoint, f"{host}:{port}", settings.stream_window)

    def term(self) -> None:
        """See IContext."""
        super().term()
        self._sockets.term()
