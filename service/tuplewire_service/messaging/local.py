"""The local transport: workers of one process, without a wire.

Source: Storm's `messaging.local.Context` (LocalServer, LocalClient). Batches pass by reference, by the same
sessions, credit, leases and ledgers as over a wire; a registry that all contexts of the process share joins
the two sides, and the messaging loop carries. What is sent before the server is bound, or has its callback,
waits with its sender and comes first.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Sequence
from functools import partial, wraps
from itertools import count
from typing import Any

from tuplewire.connection import sending_end
from tuplewire.connection.goodbye import owe_goodbye
from tuplewire.connection.loop import messaging_loop
from tuplewire.connection.loop_sending_end import LoopSendingEnd
from tuplewire.errors import BindError, RefusedError
from tuplewire.events import event_logger
from tuplewire.group import TaskGroup
from tuplewire.session.flow import OutFrame
from tuplewire_service.messaging.base import IConnectionCallback, Intake
from tuplewire_service.messaging.relay_client import IRelayConnection
from tuplewire_service.messaging.threaded import ReceivingSession, ThreadedClient, ThreadedServer
from tuplewire_service.messaging.transport_settings import TransportContext, TransportSettings

logger = event_logger(__name__)

_RETRY_SECONDS = 0.05
_FIRST_EPHEMERAL_PORT = 49152


class LocalEndpoint:
    """A server or nobody yet, and its senders. Belongs to the messaging loop, as all of them do."""

    def __init__(self) -> None:
        self.server: LocalServer | None = None
        self.senders: dict[LocalSender, None] = {}

    def carry(self) -> None:
        """Let each sender see what the server takes now."""
        for sender in list(self.senders):
            sender.carry()


_endpoints: dict[tuple[str, int], LocalEndpoint] = {}
"""Those of the process that are in use. Source: Storm's `queues-map`, keyed by topology and port."""


def _tidy(at: tuple[str, int]) -> None:
    """Forget an endpoint that nobody uses any more."""
    if _endpoints[at].server is None and not _endpoints[at].senders:
        del _endpoints[at]


class LocalSender(ThreadedClient, LoopSendingEnd):
    """One session to a port of the same process. What its callers hand over is carried on the loop."""

    def __init__(self, topology: str, port: int, settings: TransportSettings) -> None:
        super().__init__(port, settings.worker_id, settings.session)
        self._at = topology, port
        self._thread = messaging_loop()
        self.event_loop = self._thread.loop
        self._loop_thread = threading.get_ident() if self._thread.inside else 0
        self._server: LocalServer | None = None
        self._session: ReceivingSession | None = None
        self._refused_lately = False
        self._timer: asyncio.TimerHandle | None = None
        self.event_loop.call_soon_threadsafe(self._join)

    def _join(self) -> None:
        self._loop_thread = threading.get_ident()
        if not self.ended:
            _endpoints.setdefault(self._at, LocalEndpoint()).senders[self] = None
            self.carry()

    def _woken(self) -> None:
        self.carry()

    def carry(self) -> None:
        """Carry a frame and what there is to tell, on the loop; the rest, in later turns."""
        with self._lock:
            self._take_in()
        if not self.ended:
            self._carry_to(_endpoints[self._at].server)
            if self._timer is None:
                self._look_again(sending_end.CLOSE_UNUSED_SECONDS)
        self.tell()

    def _carry_to(self, server: LocalServer | None) -> None:
        if server is not self._server:
            self._break_off()
            self._server = server
        if server is None or not (session := self._session or self._open(server)):
            return
        self._acknowledge(session)
        if follow := self.next_watched():
            session.watch_releases(follow)
        if not server.takes(session):
            session.intake = self.sending.intake  # a worker may be about to go by now
        frame = self.next_frame() if server.takes(session) else None
        if frame is not None:
            if not self._give(frame, server, session):
                self._break_off()
            self._wake()  # for its acknowledgement, and the next one

    def _open(self, server: LocalServer) -> ReceivingSession | None:
        if self._refused_lately:
            return None
        try:
            self._session, opened = server.welcome(self.sending, self._wake)
        except RefusedError as error:
            self._last_problem = str(error)
            self._refused_lately = True
            self._look_again(_RETRY_SECONDS)
            return None
        self.opened(opened, server.loads)
        return self._session

    def _look_again(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.event_loop.call_later(seconds, self._time_passed)

    def _time_passed(self) -> None:
        self._timer, self._refused_lately = None, False
        self.carry()

    def _give(self, frame: OutFrame, server: LocalServer, session: ReceivingSession) -> bool:
        version = self.assignment_version()
        try:
            return server.take(session, frame.sequence, frame.groups(), version, frame.closed)
        except RefusedError as error:
            logger.warning("connection.refused", extra={"peer": f"local:{self.port}", "reason": str(error)})
            return False

    def _acknowledge(self, session: ReceivingSession) -> None:
        while (update := session.update()) is not None:
            self.update(update)

    def _break_off(self) -> None:
        """End the session's connection: the server that is there next gets what this one has not taken."""
        if self._session is not None:
            self._acknowledge(self._session)
            self._session = None
            self.lost(answers=True)  # in this process nobody dies alone

    def take_back(self, timeout: float) -> list[tuple[TaskGroup, Any]]:
        return [] if self.ended else self.run(self.take_back_async(timeout))

    def close(self, timeout: float = 10.0) -> None:
        if not self.ended:
            self.run(self.close_async(timeout))

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._server is not None and self._session is not None:
            self._server.goodbye(self._session)
        self.tell()
        endpoint = _endpoints.get(self._at)
        if endpoint is not None and endpoint.senders.pop(self, self) is None:
            _tidy(self._at)

    async def _stop_async(self) -> None:
        self._stop()  # there is no I/O to wait for


def _passed_on(name: str) -> Any:
    @wraps(getattr(IRelayConnection, name, getattr(LocalSender, name)), updated=())
    def verb(self: LocalClient, *arguments: Any, **options: Any) -> Any:
        return getattr(self._sender, name)(*arguments, **options)

    return verb


def _told(name: str) -> Any:
    return property(lambda self: getattr(self._sender, name), doc=inspect.getdoc(getattr(LocalSender, name)))


class LocalClient(IRelayConnection):
    """Sends to a port of the same process; says goodbye when it is dropped. Source: Storm's `LocalClient`."""

    port, status, congested = _told("port"), _told("status"), _told("congested")
    unkept_messages = _told("unkept_messages")
    try_send, forward = _passed_on("try_send"), _passed_on("forward")
    flush, flush_async = _passed_on("flush"), _passed_on("flush_async")
    close, close_async, abort = _passed_on("close"), _passed_on("close_async"), _passed_on("abort")
    take_back, take_back_async = _passed_on("take_back"), _passed_on("take_back_async")
    attach, watch_releases = _passed_on("attach"), _passed_on("watch_releases")
    all_released, route_before = _passed_on("all_released"), _passed_on("route_before")
    get_load, statistics, stop_writing = map(_passed_on, ("get_load", "statistics", "stop_writing"))

    def __init__(self, sender: LocalSender) -> None:
        self._sender = sender
        owe_goodbye(self, sender)

    def send(self, messages: Any, payload: bytes | None = None, /, *, timeout: float | None = None) -> None:
        if not self._sender.send_one(messages, payload):  # here too: one call less for each message
            self._sender.send(messages, payload, timeout=timeout)


class LocalServer(ThreadedServer):
    """Gets what senders of the same process send to its port. Source: Storm's `LocalServer`."""

    def __init__(
        self, topology: str, port: int, settings: TransportSettings, callback: IConnectionCallback | None
    ) -> None:
        super().__init__(settings)
        self._port = self._thread.call(partial(self._bind, topology, port))
        self._at = topology, self._port
        self._addresses = [f"local:{self._port}"]
        if callback is not None:
            self.register_recv(callback)
        self._opened()

    def _bind(self, topology: str, port: int) -> int:
        """Take a port (0: any free one); BindError where there is a server."""
        bound = {at for at, endpoint in _endpoints.items() if endpoint.server is not None}
        if (topology, port) in bound:
            raise BindError(
                f"port {port} of topology {topology!r} is bound in this process already; "
                "close that server first, or bind port 0 for a free one"
            )
        port = port or next(free for free in count(_FIRST_EPHEMERAL_PORT) if (topology, free) not in bound)
        self._endpoint = _endpoints.setdefault((topology, port), LocalEndpoint())
        self._endpoint.server = self
        return port

    def _opened(self) -> None:
        self._thread.loop.call_soon_threadsafe(self._endpoint.carry)

    def stop_intake(self, intake: Intake = Intake.NOBODY) -> None:
        super().stop_intake(intake)
        self._opened()

    def _tell_load(self, loads: dict[int, float]) -> None:
        for sender in self._thread.call(lambda: list(self._endpoint.senders)):
            sender.take_load(loads)

    def _tell_status(self, congested: Sequence[int], relieved: Sequence[int]) -> None:
        for sender in self._thread.call(lambda: list(self._endpoint.senders)):
            sender.take_status(congested, relieved)

    def _end(self, timeout: float) -> None:
        del timeout  # everything was told as it was taken
        self._thread.call(self._unbind)

    def _unbind(self) -> None:
        self._endpoint.server = None
        self._endpoint.carry()
        _tidy(self._at)


class LocalContext(TransportContext):
    """Binds and connects within the process; all its instances share one registry.

    Not for use on the messaging loop itself, but for connect.
    """

    def bind(self, topology_id: str, port: int, callback: IConnectionCallback | None = None) -> LocalServer:
        """See IContext. Raises BindError when the port of this topology is bound."""
        return self._keep(LocalServer(topology_id, port, self._settings, callback))

    def connect(self, topology_id: str, host: str, port: int) -> LocalClient:
        """See IContext. The host does not matter: everything is here."""
        del host
        return LocalClient(self._keep(LocalSender(topology_id, port, self._settings)))
