"""A worker's connections to other workers, updated with the assignment.

Used by router.py and transfer_queue.py. Owns open and closing connections, and the possibly lost
messages of departed peers. Call only from the event loop. Source: Storm's `refresh-connections` and
`cached-node+port->socket`. Design: docs/design/moves.md.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterator
from dataclasses import asdict, dataclass, field
from itertools import chain, count
from typing import Any

from tuplewire.connection.loop import report_errors
from tuplewire.connection.sending_end import SendingEnd
from tuplewire.session.send_events import SendEvents
from tuplewire.settings.addresses import Peer, split_host_port
from tuplewire.text.events import event_logger
from tuplewire.values.group import TaskGroup
from tuplewire.wire import control_pb2 as pb
from tuplewire_service.messaging.reception import OTHER
from tuplewire_service.messaging.streamed_transport import StreamedContext
from tuplewire_service.worker.departures import UnreleasedAtPeer

logger = event_logger(__name__)

REROUTE_SECONDS = 3.0
"""Seconds without a session or acknowledgements after which an unassigned worker's messages are rerouted."""
_MAX_DEPARTED_PEERS = 1000
"""Maximum number of departed workers with a separate count of possibly lost messages."""


@dataclass(eq=False, repr=False)
class Connections:
    """One connection to each worker that this one sends to. Call only from the event loop."""

    context: StreamedContext
    topology: str
    events: SendEvents
    on_returned: Callable[[SendingEnd, list[tuple[TaskGroup, Any]]], None]
    """Called with a closed connection and its unacknowledged messages."""
    by_peer: dict[Peer, SendingEnd] = field(default_factory=dict)
    """The open connections."""
    _needed: frozenset[Peer] = frozenset()
    _closed: bool = False
    _close_tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _closing: dict[SendingEnd, Peer] = field(default_factory=dict)
    _numbers: dict[SendingEnd, int] = field(default_factory=dict)
    _next_number: Iterator[int] = field(default_factory=lambda: count(1))
    _past_losses: Counter[str] = field(default_factory=Counter)

    def __repr__(self) -> str:
        return (
            f"<Connections open={len(self.by_peer)} disconnected={len(self.disconnected_workers)} "
            f"closing={len(self._closing)} pending={self.pending_messages}>"
        )

    def refresh(self, needed: Collection[Peer], kept: Container[Peer], lost: Container[Peer]) -> None:
        """Open missing connections; in the background, close connections that are neither needed nor kept.

        A closing connection waits for acknowledgements for a limited time, but not for lost peers.
        """
        self._needed = frozenset(needed)
        for peer in needed:
            self.get_or_open(peer)
        for peer in [peer for peer in self.by_peer if peer not in self._needed and peer not in kept]:
            self._close_in_background(peer, 0.0 if peer in lost else REROUTE_SECONDS)

    def _close_in_background(self, peer: Peer, timeout: float) -> None:
        connection = self.by_peer.pop(peer)
        if not timeout:  # a peer that answers now must not receive messages that are rerouted
            connection.may_write = False
        self._closing[connection] = peer
        task = asyncio.create_task(self._close(peer, connection, timeout), name=f"close {peer.address}")
        self._close_tasks.add(task)
        report_errors(task).add_done_callback(self._close_tasks.discard)

    def replace(self, peer: Peer) -> None:
        """Replace the connection to a worker, and reclaim its messages in the background."""
        self._close_in_background(peer, 0.0)
        self._open(peer)

    def _open(self, peer: Peer) -> None:
        host, port = split_host_port(peer.address)
        connection = self.context.connect(self.topology, host, port, peer.worker_id, self.events).sender
        self._numbers[connection] = next(self._next_number)
        self.by_peer[peer] = connection
        logger.info("peer.added", extra={"worker": peer.worker_id, "address": peer.address})

    async def _close(self, peer: Peer, connection: SendingEnd, timeout: float) -> None:
        unacked = await connection.withdraw(timeout)
        if lost := connection.buffer.session.possibly_lost:
            # New worker ids may appear indefinitely, so later ones share one count.
            known = peer.worker_id in self._past_losses or len(self._past_losses) < _MAX_DEPARTED_PEERS
            self._past_losses[peer.worker_id if known else OTHER] += lost
        del self._closing[connection], self._numbers[connection]
        fields = {"worker": peer.worker_id, "address": peer.address}
        logger.info("peer.removed", extra={**fields, "returned_groups": len(unacked)})
        self.on_returned(connection, unacked)

    def get_or_open(self, peer: Peer) -> SendingEnd | None:
        """Return the connection to a worker; open it if necessary. None after close().

        Readiness does not wait for it, unless refresh() needs it.
        """
        if peer not in self.by_peer and not self._closed:
            self._open(peer)
        return self.by_peer.get(peer)

    @property
    def disconnected_workers(self) -> list[str]:
        """The ids of the needed workers without a session at the moment."""
        return sorted(peer.worker_id for peer in self._needed if not self.is_connected(peer))

    def is_connected(self, peer: Peer) -> bool:
        """Return True if there is a session with a worker at the moment."""
        connection = self.by_peer.get(peer)
        return connection is not None and connection.connected

    @property
    def unretained_messages(self) -> int:
        """Messages that neither the receiver nor their sender is known to have."""
        return sum(each.session.count_only_here() for each in (*self.by_peer.values(), *self._closing))

    @property
    def pending_messages(self) -> int:
        """Messages that were forwarded and are not settled."""
        return sum(each.buffer.ledger().pending for each in (*self.by_peer.values(), *self._closing))

    def add_to(self, status: pb.GetStatusResponse) -> None:
        """Add every connection, with the known state of its peer, to a worker's status."""
        lost = self._past_losses.copy()
        leaving = ((peer, connection) for connection, peer in self._closing.items())
        for peer, connection in chain(self.by_peer.items(), leaving):
            counts = connection.counts
            # A replacement has the same worker and address as a closing connection: see `connection_number`.
            status.peers.add(
                **peer._asdict(),
                connection_number=self._numbers[connection],
                connected=connection.connected,
                ledger=pb.Ledger(**asdict(connection.buffer.ledger())),
                reconnects=max(0, counts.connections - 1),
                congested_tasks=sorted(connection.congested_tasks.tasks(time.monotonic())),
                sent_messages=counts.messages,
                sent_frames=counts.frames,
                sent_bytes=counts.bytes,
            )
            lost[peer.worker_id] += connection.session.possibly_lost
            newest = max(status.newest_assignment_version, connection.ack_handler.assignment_version)
            status.newest_assignment_version = newest
        status.possibly_lost_messages.update(lost)

    def blocked_tasks(self) -> Iterator[tuple[int, str]]:
        """Yield each task with messages that a worker does not accept now, with that worker's id."""
        for peer, connection in self.by_peer.items():
            for task in connection.blocked_tasks:
                yield task, peer.worker_id

    def loads(self, peer: Peer, tasks: Collection[int]) -> dict[int, float]:
        """Return the last reported loads of a worker's tasks, 0 by default; empty without a session."""
        if not self.is_connected(peer):
            return {}
        return {**dict.fromkeys(tasks, 0.0), **self.by_peer[peer].loads.get(tasks, time.monotonic())}

    async def close(self, timeout: float) -> None:
        """Close everything. Wait for acknowledgements for at most `timeout` seconds, then drop the rest.

        Connections that are already closing do the same instead of returning their messages.
        """
        self._closed = True
        connections = [*self.by_peer.values(), *self._closing]
        await asyncio.gather(*(each.close_async(timeout) for each in connections))
        await asyncio.gather(*self._close_tasks)

    def unreleased_by_peer(self) -> Iterator[UnreleasedAtPeer]:
        """Yield the unreleased messages at each worker."""
        for peer, connection in self.by_peer.items():
            session = connection.session
            yield peer, session.worker_incarnation, session.last_unreleased_sequences()

    def find_ended_peers(self, departed: Container[int], old_owners: Container[Peer]) -> dict[Peer, set[int]]:
        """Return unreachable peers from which pending messages must be reclaimed, with the tasks of these.

        `departed`: workers that shut down cleanly. `old_owners`: previous owners of moved tasks, which count
        if they hold no message of this worker.
        """
        found: dict[Peer, set[int]] = {}
        for peer, connection in self.by_peer.items():
            if not self.is_connected(peer):
                session = connection.session
                keys, drained = session.last_unreleased_sequences(), session.worker_incarnation in departed
                if keys and (drained or (peer in old_owners and session.all_written_released)):
                    found[peer] = {task for task, _ in keys}
        return found

    def release_departed(self, incarnations: Container[int]) -> None:
        """Count all messages at departed workers as released: these workers had forwarded all of them."""
        for connection in self.by_peer.values():
            session = connection.session
            if session.worker_incarnation in incarnations:
                session.on_receiver_shutdown()
                # The departed worker accounts for its messages, so they do not count as possibly lost.
                session.receiver_ended_cleanly = True
                connection.buffer.run_callbacks()

    def abort(self) -> None:
        """Close everything immediately. Do not call this on the event loop."""
        for connection in [*self.by_peer.values(), *self._closing]:
            connection.abort()
