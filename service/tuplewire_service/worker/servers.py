"""What a worker listens on: a server for its programs, and one for its peers where they speak otherwise.

Source: Storm's `WorkerState.registerCallbacks`, which has one receiver for all.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice

from tuplewire_service.messaging.base import (
    IConnectionCallback,
    IContext,
    Intake,
    IServerConnection,
    ReceiveCount,
    ServerStatistics,
)

_CLOSE_SECONDS = 10.0


class Servers:
    """The servers of one worker, which feed one callback. Belongs to the event loop."""

    def __init__(self, programs: IContext, peers: IContext | None, topology: str) -> None:
        """Start without any. peers: the transport between workers; None: that of the programs."""
        self._programs = programs
        self._peers = peers
        self._topology = topology
        self._bound: list[IServerConnection] = []
        self.peer_addresses: list[str] = []
        """Where the peers' server is bound, if there is one of its own."""

    async def start(self, port: int, peers_port: int, callback: IConnectionCallback) -> None:
        """Bind, and begin to serve; BindError when that fails."""
        await self._bind(self._programs, port, callback)
        if self._peers is not None:
            self.peer_addresses = list((await self._bind(self._peers, peers_port, callback)).addresses)

    async def _bind(self, context: IContext, port: int, callback: IConnectionCallback) -> IServerConnection:
        server = await asyncio.to_thread(context.bind, self._topology, port, callback)
        self._bound.append(server)
        return server

    @property
    def addresses(self) -> list[str]:
        """Every address at which programs are served."""
        return list(self._bound[0].addresses) if self._bound else []

    async def stop_intake(self, intake: Intake) -> None:
        """See IServerConnection."""
        for server in self._bound:
            await asyncio.to_thread(server.stop_intake, intake)

    def send_load_metrics(self, loads: Mapping[int, float]) -> None:
        """See IServerConnection."""
        for server in self._bound:
            server.send_load_metrics(loads)

    def exhausted(self) -> set[int]:
        """Return the tasks for which some sender has used its window up."""
        return {task for server in self._bound for task in server.exhausted}

    def longest_exhausted(self) -> Iterator[int]:
        """Yield the one of these that has been so for longest, server by server."""
        for server in self._bound:
            yield from islice(server.exhausted, 1)

    def statistics(self) -> ServerStatistics:
        """Return the counts of all servers together."""
        received: dict[str, ReceiveCount] = {}
        refused: Counter[str] = Counter()
        sessions = 0
        for each in (server.statistics() for server in self._bound):
            for count in each.received:
                before = received.get(count.source, ReceiveCount(count.source, 0, 0, 0))
                received[count.source] = ReceiveCount(
                    count.source,
                    before.messages + count.messages,
                    before.batches + count.batches,
                    before.bytes + count.bytes,
                )
            refused.update(each.refused)
            sessions += each.sessions
        return ServerStatistics(list(received.values()), sessions, dict(refused))

    async def close(self) -> None:
        """Close all servers."""
        for server in self._bound:
            await asyncio.to_thread(server.close, _CLOSE_SECONDS)
