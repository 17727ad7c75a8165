"""Both sides of the local transport, and where they meet: an endpoint for each (topology, port)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Sequence
from itertools import count
from typing import Any

from tuplewire.errors import BindError, RefusedError
from tuplewire.session.flow import OutFrame
from tuplewire_service.messaging.base import ConnectionStatus, IConnectionCallback, Intake
from tuplewire_service.messaging.threaded import ReceivingSession, ThreadedClient, ThreadedServer
from tuplewire_service.messaging.transport_settings import TransportContext, TransportSettings

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 0.05
_FIRST_EPHEMERAL_PORT = 49152


def on_loop(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether the caller runs on this event loop."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


class LocalEndpoint:
    """A server or nobody yet, and its clients; carries what there is between them.

    One thread at a time carries, whichever comes first; the others leave what they have to that one. So no
    thread waits for a lock while it calls somebody's callback, and two endpoints may send to each other.
    """

    def __init__(self) -> None:
        self.server: ThreadedServer | None = None
        self._lock = threading.Lock()
        self._clients: dict[LocalClient, None] = {}
        self._due: dict[LocalClient, None] = {}
        self._late: dict[LocalClient, None] = {}
        self._carrying = False
        self._timer: threading.Timer | asyncio.TimerHandle | None = None

    @property
    def clients(self) -> list[LocalClient]:
        """The clients that are connected, or want to be."""
        with self._lock:
            return list(self._clients)

    def join(self, client: LocalClient) -> None:
        """Carry for this client from now on."""
        with self._lock:
            self._clients[client] = None
        self.serve(client)

    def leave(self, client: LocalClient) -> None:
        """Carry for this client no more, but what it asks for itself."""
        with self._lock:
            self._clients.pop(client, None)
            if not self._clients and self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def serve(self, *clients: LocalClient) -> None:
        """Carry what these clients have, or leave it to the thread that carries already."""
        with self._lock:
            self._due.update(dict.fromkeys(clients))
            if self._carrying:
                return
            self._carrying = True
        try:
            while (client := self._next()) is not None:
                if client.carry(self.server):
                    with self._lock:
                        self._due[client] = None
        except BaseException:
            self._next(stop=True)
            raise

    def _next(self, *, stop: bool = False) -> LocalClient | None:
        """Return a client that has something, or stop carrying."""
        with self._lock:
            if self._due and not stop:
                client = next(iter(self._due))
                del self._due[client]
                return client
            self._carrying = False
            return None

    def later(self, client: LocalClient, seconds: float) -> None:
        """Carry what this client has after so long: on the caller's event loop, or in a thread.

        Either holds nobody's locks.
        """
        with self._lock:
            if client not in self._clients:
                return
            if self._carrying and not seconds:
                self._due[client] = None
                return
            self._late[client] = None
            if self._timer is None:
                self._timer = self._timer_of(seconds)

    def _timer_of(self, seconds: float) -> threading.Timer | asyncio.TimerHandle:
        try:
            return asyncio.get_running_loop().call_later(seconds, self._time_passed)
        except RuntimeError:
            timer = threading.Timer(seconds, self._time_passed)
            timer.daemon = True
            timer.start()
            return timer

    def _time_passed(self) -> None:
        with self._lock:
            self._timer = None
            late, self._late = self._late, {}
        self.serve(*late)


_endpoints: dict[tuple[str, int], LocalEndpoint] = {}
"""Every endpoint of the process. Source: Storm's `queues-map`, keyed by topology and port."""
_endpoints_lock = threading.Lock()


def endpoint_at(topology: str, port: int) -> LocalEndpoint:
    """Return the endpoint, a new one where nobody has asked for it before."""
    with _endpoints_lock:
        return _endpoints.setdefault((topology, port), LocalEndpoint())


def bind_endpoint(topology: str, port: int, server: ThreadedServer) -> tuple[int, LocalEndpoint]:
    """Put a server there (port 0: at any free one); BindError where there is one."""
    with _endpoints_lock:
        bound = {at for at, endpoint in _endpoints.items() if endpoint.server is not None}
        if (topology, port) in bound:
            raise BindError(
                f"port {port} of topology {topology!r} is bound in this process already; "
                "close that server first, or bind port 0 for a free one"
            )
        port = port or next(free for free in count(_FIRST_EPHEMERAL_PORT) if (topology, free) not in bound)
        endpoint = _endpoints.setdefault((topology, port), LocalEndpoint())
        endpoint.server = server
        return port, endpoint


class LocalClient(ThreadedClient):
    """Sends to a port of the same process. Source: Storm's `LocalClient`.

    Every send carries first what has waited, and calls the server's callback in the sender's thread; what no
    send and no event would carry, a timer does. What a worker sends is carried on its event loop.
    """

    def __init__(self, endpoint: LocalEndpoint, port: int, settings: TransportSettings) -> None:
        super().__init__(port, settings.worker_id, settings.session)
        self._endpoint = endpoint
        self._server: ThreadedServer | None = None
        self._session: ReceivingSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        endpoint.join(self)

    def attach(self, *arguments: Any) -> None:
        super().attach(*arguments)
        with contextlib.suppress(RuntimeError):  # who has no event loop is carried in any thread
            self._loop = asyncio.get_running_loop()

    def _wake(self) -> None:
        if self._loop is None or on_loop(self._loop):
            self._endpoint.serve(self)
        else:
            self._loop.call_soon_threadsafe(self._endpoint.serve, self)

    def carry(self, server: ThreadedServer | None) -> bool:
        """Carry one frame, or one acknowledgement; return whether there may be more."""
        session = self._session
        if self.status is ConnectionStatus.CLOSED:
            if self._server is not None and session is not None:
                self._server.goodbye(session)
            self.tell()
            return False
        if server is None or session is None or self._server is not server:
            more = self._reopen(server)
            self.tell()
            return more
        if follow := self.next_watched():
            session.watch_releases(follow)
        if not server.takes(session):
            session.intake = self.sending.intake  # a worker may be about to go by now
        frame = self.next_frame() if server.takes(session) else None
        taken = frame is None or self._hand_over(frame, server, session)
        self._acknowledge(session)
        self.tell()
        return frame is not None if taken else self._reopen(server)

    def _acknowledge(self, session: ReceivingSession) -> None:
        with session.lock:  # one after the other, since a refusal goes with its acknowledgement
            while (update := session.update()) is not None:
                self.update(update)

    def _released(self) -> None:
        """Take account of a release; what it makes room for is carried later, in another thread.

        Whoever releases may hold a lock that the server's callback takes.
        """
        if (session := self._session) is not None:
            self._acknowledge(session)
            if self.waiting:
                self._endpoint.later(self, 0.0)

    def _hand_over(self, frame: OutFrame, server: ThreadedServer, session: ReceivingSession) -> bool:
        groups = frame.runs[0] if len(frame.runs) == 1 else [group for run in frame.runs for group in run]
        try:
            return server.take(session, frame.sequence, groups, self.assignment_version(), frame.closed)
        except RefusedError as error:
            logger.warning("connection.refused", extra={"peer": f"local:{self.port}", "reason": str(error)})
            return False

    def _reopen(self, server: ThreadedServer | None) -> bool:
        """Go on at the server that is there now: it gets what the one before has not taken."""
        if self._session is not None:
            self._acknowledge(self._session)
            self._session = None
            self.lost(answers=True)  # in this process nobody dies alone
        if server is None:
            return False
        sending = self.sending
        try:
            session, opened = server.welcome(sending, self._released)
        except RefusedError:
            self._endpoint.later(self, _RETRY_SECONDS)
            return False
        self._server, self._session = server, session
        self.opened(opened, server.loads)
        return True

    def _stop(self) -> None:
        self._endpoint.leave(self)
        self._wake()

    async def _stop_async(self) -> None:
        self._stop()  # there is no I/O to wait for


class LocalServer(ThreadedServer):
    """Gets what clients of the same process send to its port. Source: Storm's `LocalServer`."""

    def __init__(
        self, topology: str, port: int, settings: TransportSettings, callback: IConnectionCallback | None
    ) -> None:
        super().__init__(settings)
        self._port, self._endpoint = bind_endpoint(topology, port, self)
        self._addresses = [f"local:{self._port}"]
        if callback is not None:
            self.register_recv(callback)
        self._opened()

    def _opened(self) -> None:
        self._endpoint.serve(*self._endpoint.clients)

    def stop_intake(self, intake: Intake = Intake.NOBODY) -> None:
        super().stop_intake(intake)
        self._endpoint.serve(*self._endpoint.clients)

    def _tell_load(self, loads: dict[int, float]) -> None:
        for client in self._endpoint.clients:
            client.take_load(loads)

    def _tell_status(self, congested: Sequence[int], relieved: Sequence[int]) -> None:
        for client in self._endpoint.clients:
            client.take_status(congested, relieved)

    def _end(self, timeout: float) -> None:
        del timeout  # everything was told as it was taken
        self._endpoint.server = None
        self._endpoint.serve(*self._endpoint.clients)


class LocalContext(TransportContext):
    """Binds and connects within the process; all its instances share one registry."""

    def bind(self, topology_id: str, port: int, callback: IConnectionCallback | None = None) -> LocalServer:
        """See IContext. Raises BindError when the port of this topology is bound."""
        server = LocalServer(topology_id, port, self._settings, callback)
        self._made.append(server)
        return server

    def connect(self, topology_id: str, host: str, port: int) -> LocalClient:
        """See IContext. The host does not matter: everything is here."""
        del host
        client = LocalClient(endpoint_at(topology_id, port), port, self._settings)
        self._made.append(client)
        return client
