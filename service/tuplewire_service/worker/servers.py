"""A worker's servers: one for programs, and one for peers if they use another transport.

Used by worker.py and times.py. Owns the bound servers and the hosted program. Call only from the event loop.
Source: Storm's `WorkerState.registerCallbacks`, which has one receiver for all.
Design: docs/design/sessions.md (transports).
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from operator import attrgetter

from tuplewire.session.departure import Departure
from tuplewire.wire import control_pb2 as pb
from tuplewire_service.messaging.base import (
    IConnectionCallback,
    IContext,
    Intake,
    IServerConnection,
    ServerStatistics,
)
from tuplewire_service.worker.assignment import Assignment

_CLOSE_SECONDS = 10.0


class IProgram(ABC):
    """A program inside the worker, such as executors. Called on the event loop, so it must not block."""

    @property
    @abstractmethod
    def not_ready_because(self) -> str:
        """The reason that the program is not ready, as text; empty if it is ready."""

    @property
    @abstractmethod
    def busy(self) -> bool:
        """True if it holds work for which it may still send messages."""

    @abstractmethod
    def assigned(self, assignment: Assignment) -> None:
        """Apply the new current assignment."""

    @abstractmethod
    def exchange_loads(self, known: Mapping[int, float]) -> Mapping[int, float]:
        """Receive the worker's known loads, 0 to 1, and return the loads of the program's tasks."""

    @property
    @abstractmethod
    def exhausted(self) -> Collection[int]:
        """The tasks whose credit it waits for, the longest wait first; see IServerConnection."""

    @abstractmethod
    def statistics(self) -> ServerStatistics:
        """Return the counts of messages that it sent to the worker; see IServerConnection."""


class Servers:
    """The servers of one worker, with one callback. Call only from the event loop."""

    def __init__(self, programs: IContext, peers: IContext | None, topology: str) -> None:
        """Start without servers. `peers` is the transport between workers; None: the same as for programs."""
        self._programs = programs
        self._peers = peers
        self._topology = topology
        self._bound: list[IServerConnection] = []
        self.program: IProgram | None = None
        """A program inside the worker, which sends messages like a client of a server."""

    async def start(self, port: int, peers_port: int, callback: IConnectionCallback) -> None:
        """Bind, and start to serve. Raises BindError."""
        for context, at in ((self._programs, port), (self._peers, peers_port)):
            if context is not None:
                # bind() waits for the messaging loop, so it must not run on it.
                self._bound.append(await asyncio.to_thread(context.bind, self._topology, at, callback))

    @property
    def addresses(self) -> list[str]:
        """Every address at which programs are served."""
        # The first server is for programs, a second one for peers.
        return [address for server in self._bound[:1] for address in server.addresses]

    @property
    def peer_addresses(self) -> list[str]:
        """The addresses of a separate server for peers."""
        return [address for server in self._bound[1:] for address in server.addresses]

    async def stop_intake(self, intake: Intake) -> None:
        """See IServerConnection."""
        for server in self._bound:
            await server.stop_intake_async(intake)

    def send_load_metrics(self, loads: Mapping[int, float]) -> None:
        """See IServerConnection."""
        for server in self._bound:
            server.send_load_metrics(loads)

    def send_backpressure_status(
        self, worker_id: str, congested: Collection[int], relieved: Collection[int]
    ) -> None:
        """See IServerConnection."""
        for server in self._bound:
            server.send_backpressure_status(worker_id, sorted(congested), sorted(relieved))

    def tell_departures(self, departures: Sequence[Departure]) -> None:
        """See IServerConnection."""
        for server in self._bound:
            server.tell_departures(departures)

    def exhausted(self) -> set[int]:
        """Return the tasks for which a sender has used up its window."""
        return {task for each in self._senders() for task in each.exhausted}

    @property
    def any_exhausted(self) -> bool:
        """True if there is such a task."""
        return any(each.exhausted for each in self._senders())

    def longest_exhausted(self) -> Iterator[int]:
        """Yield, for each sender, the task that has been exhausted longest."""
        for each in self._senders():
            yield from islice(each.exhausted, 1)

    def _senders(self) -> list[IServerConnection | IProgram]:
        return [*self._bound, *([] if self.program is None else [self.program])]

    def add_to(self, status: pb.GetStatusResponse) -> None:
        """Add the addresses, and the summed counts, to a worker's status."""
        status.addresses.extend(self.addresses)
        status.peer_addresses.extend(self.peer_addresses)
        received: dict[str, pb.ReceiveCount] = {}
        parts = [sender.statistics() for sender in self._senders()]
        if windows := [part.smallest_window for part in parts if part.smallest_window is not None]:
            status.smallest_window = min(windows)
        for part in parts:
            status.sharing_sessions += part.sessions
            status.resumable_sessions += part.resumable_sessions
            status.silent_streams += part.silent_streams
            status.server_restarts += part.restarts
            for counts, more in (
                (status.refused_streams, part.refused_streams),
                (status.refused_messages, part.refused_messages),
            ):
                for code, count in more.items():
                    counts[code] += count
            for who, (sharing, resumable) in part.identities.items():
                status.identities[who].sharing += sharing
                status.identities[who].resumable += resumable
            for each in part.received:
                if each.source not in received:
                    received[each.source] = status.received.add(source=each.source)
                total = received[each.source]
                total.messages += each.messages
                total.batches += each.batches
                total.bytes += each.bytes

    def sessions(self) -> list[pb.SessionStatus]:
        """Return the sessions of all servers, by descending number of outstanding messages."""
        found = [each for server in self._bound for each in server.sessions()]
        return sorted(found, key=attrgetter("outstanding_messages", "messages"), reverse=True)

    async def close(self) -> None:
        """Close all servers."""
        for server in self._bound:
            await server.close_async(_CLOSE_SECONDS)

    def abort(self) -> None:
        """Stop all servers immediately. Do not call this on the event loop."""
        for server in self._bound:
            server.abort()
