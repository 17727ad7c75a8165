"""Where the two sides meet: an endpoint for each (topology, port), in one registry of the process."""

from __future__ import annotations

import asyncio
import threading
from typing import Protocol

from tuplewire.errors import BindError
from tuplewire_service.messaging.threaded import ThreadedServer

_FIRST_EPHEMERAL_PORT = 49152


def on_loop(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether the caller runs on this event loop."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


class Carried(Protocol):
    """A client, as its endpoint sees it."""

    def carry(self, server: ThreadedServer | None) -> bool:
        """Carry one frame, or one acknowledgement; return whether there may be more."""


class LocalEndpoint:
    """A server or nobody yet, and its clients; carries what there is between them.

    One thread at a time carries, whichever comes first; the others leave what they have to that one. So no
    thread waits for a lock while it calls somebody's callback, and two endpoints may send to each other.
    """

    def __init__(self) -> None:
        self.server: ThreadedServer | None = None
        self._lock = threading.Lock()
        self._clients: dict[Carried, None] = {}
        self._due: dict[Carried, None] = {}
        self._late: dict[Carried, None] = {}
        self._carrying = False
        self._timer: threading.Timer | asyncio.TimerHandle | None = None

    @property
    def clients(self) -> list[Carried]:
        """The clients that are connected, or want to be."""
        with self._lock:
            return list(self._clients)

    def join(self, client: Carried) -> None:
        """Carry for this client from now on."""
        with self._lock:
            self._clients[client] = None
        self.serve(client)

    def leave(self, client: Carried) -> None:
        """Carry for this client no more, but what it asks for itself."""
        with self._lock:
            self._clients.pop(client, None)
            if not self._clients and self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def serve(self, *clients: Carried) -> None:
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

    def _next(self, *, stop: bool = False) -> Carried | None:
        """Return a client that has something, or stop carrying."""
        with self._lock:
            if self._due and not stop:
                client = next(iter(self._due))
                del self._due[client]
                return client
            self._carrying = False
            return None

    def later(self, client: Carried, seconds: float) -> None:
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


class LocalRegistry:
    """Every endpoint of the process. Source: Storm's `queues-map`, keyed by topology and port."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._endpoints: dict[tuple[str, int], LocalEndpoint] = {}

    def endpoint(self, topology: str, port: int) -> LocalEndpoint:
        """Return the endpoint, a new one where nobody has asked for it before."""
        with self._lock:
            return self._endpoints.setdefault((topology, port), LocalEndpoint())

    def bind(self, topology: str, port: int, server: ThreadedServer) -> tuple[int, LocalEndpoint]:
        """Put a server there (port 0: at any free one); BindError where there is one."""
        with self._lock:
            if port == 0:
                port = _FIRST_EPHEMERAL_PORT
                while self._is_bound(topology, port):
                    port += 1
            elif self._is_bound(topology, port):
                raise BindError(
                    f"port {port} of topology {topology!r} is bound in this process already; "
                    "close that server first, or bind port 0 for a free one"
                )
            endpoint = self._endpoints.setdefault((topology, port), LocalEndpoint())
            endpoint.server = server
            return port, endpoint

    def unbind(self, endpoint: LocalEndpoint) -> None:
        """Free the port for the next server."""
        with self._lock:
            endpoint.server = None

    def _is_bound(self, topology: str, port: int) -> bool:
        endpoint = self._endpoints.get((topology, port))
        return endpoint is not None and endpoint.server is not None


registry = LocalRegistry()
