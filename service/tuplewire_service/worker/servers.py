"""A worker's servers: for programs, for peers with another transport, and for the program in its process.

Used by worker.py and timekeeper.py. Owns the bound servers. Call only from the event loop. Source: Storm's
`WorkerState.registerCallbacks`, which has one receiver for all. Design: docs/design/sessions.md (transports).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from tuplewire.errors import ConfigError
from tuplewire.wire import control_pb2 as pb
from tuplewire_service.messaging.base import AcceptedPeers, IConnectionCallback, IContext
from tuplewire_service.messaging.streamed_transport import StreamedContext, StreamedServer

_CLOSE_SECONDS = 10.0


def require_streamed(context: IContext) -> StreamedContext:
    """Return a context. Raises ConfigError if its connections lack the sending end that moves need."""
    if isinstance(context, StreamedContext):
        return context
    raise ConfigError(
        f"the transport's {type(context).__name__} cannot carry a worker's messages: "
        "it has to inherit from StreamedContext"
    )


@dataclass(eq=False, repr=False)
class Servers:
    """The servers of one worker, with one callback. Call only from the event loop."""

    program_context: StreamedContext
    peer_context: StreamedContext | None
    own_program_context: StreamedContext | None
    topology: str
    all_servers: list[StreamedServer[Any]] = field(default_factory=list)
    blocked_by_server: list[Counter[int]] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)
    """Every address at which programs are served."""
    peer_addresses: list[str] = field(default_factory=list)
    """The addresses of a separate server for peers."""
    own_program_address: str = ""

    async def start(self, port: int, peers_port: int, callback: IConnectionCallback) -> None:
        """Bind, and start to serve. Raises BindError."""
        self.addresses = await self._bind(self.program_context, port, callback)
        if self.peer_context is not None:
            self.peer_addresses = await self._bind(self.peer_context, peers_port, callback)
        if self.own_program_context is not None:
            (self.own_program_address,) = await self._bind(self.own_program_context, 0, callback)

    async def _bind(self, context: StreamedContext, port: int, callback: IConnectionCallback) -> list[str]:
        # bind() waits for the messaging loop, so it must not run on it.
        server = await asyncio.to_thread(context.bind, self.topology, port, callback)
        self.all_servers.append(server)
        self.blocked_by_server.append(server.send_service.sender_sessions.tasks_without_credit)
        return list(server.addresses)

    async def set_accepted_peers(self, intake: AcceptedPeers) -> None:
        """See IServerConnection, for all servers."""
        for server in self.all_servers:
            await server.send_service.set_accepted_peers(intake)

    def tasks_without_credit(self) -> set[int]:
        """Return the tasks for which a sender has used up its window."""
        return set().union(*self.blocked_by_server)

    def add_to(self, status: pb.GetStatusResponse) -> None:
        """Add the addresses, and the summed counts, to a worker's status."""
        status.addresses.extend(self.addresses)
        status.peer_addresses.extend(self.peer_addresses)
        for server in self.all_servers:
            server.add_to(status)

    def session_statuses(self) -> list[pb.SessionStatus]:
        """Return the sessions of all servers, by descending number of outstanding messages."""
        services = [each.send_service for each in self.all_servers]
        found = [session for each in services for session in each.sender_sessions.session_statuses()]
        return sorted(found, key=attrgetter("outstanding_messages", "sent_messages"), reverse=True)

    async def close(self) -> None:
        """Close all servers."""
        for server in self.all_servers:
            await server.close_async(_CLOSE_SECONDS)

    def abort(self) -> None:
        """Stop all servers immediately. Do not call this on the event loop."""
        for server in self.all_servers:
            server.abort()
