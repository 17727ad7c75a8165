"""Both sides of the local transport, and its context."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Any

from tuplewire.errors import RefusedError
from tuplewire.session.frame import OutFrame
from tuplewire_service.messaging.base import (
    ConnectionStatus,
    IConnectionCallback,
    Intake,
)
from tuplewire_service.messaging.local.local_endpoint import LocalEndpoint, on_loop, registry
from tuplewire_service.messaging.threaded import ReceivingSession, ThreadedClient, ThreadedServer
from tuplewire_service.messaging.transport_settings import TransportContext, TransportSettings

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 0.05


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
        """See Carried."""
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
            self.lost()
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
        self._port, self._endpoint = registry.bind(topology, port, self)
        if callback is not None:
            self.register_recv(callback)
        self._opened()

    def _opened(self) -> None:
        self._endpoint.serve(*self._endpoint.clients)

    @property
    def port(self) -> int:
        return self._port

    @property
    def addresses(self) -> Sequence[str]:
        """See IServerConnection: `local:` and the port."""
        return [f"local:{self._port}"]

    def stop_intake(self, intake: Intake = Intake.NOBODY) -> None:
        super().stop_intake(intake)
        self._endpoint.serve(*self._endpoint.clients)

    def _clients(self) -> list[LocalClient]:
        return [client for client in self._endpoint.clients if isinstance(client, LocalClient)]

    def _tell_load(self, loads: dict[int, float]) -> None:
        for client in self._clients():
            client.take_load(loads)

    def _tell_status(self, congested: Sequence[int], relieved: Sequence[int]) -> None:
        for client in self._clients():
            client.take_status(congested, relieved)

    def _end(self, timeout: float) -> None:
        del timeout  # everything was told as it was taken
        registry.unbind(self._endpoint)
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
        client = LocalClient(registry.endpoint(topology_id, port), port, self._settings)
        self._made.append(client)
        return client
