"""A worker's connections to other workers, kept in step with the assignment.

Source: Storm's `refresh-connections` and `cached-node+port->socket`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from tuplewire.errors import ConfigError
from tuplewire.loop import watched
from tuplewire.session.send import Settled
from tuplewire_service.messaging.base import ConnectionStatus, IContext, IRelayConnection
from tuplewire_service.worker.assignment import AssignedWorker
from tuplewire_service.worker.status import PeerSnapshot

logger = logging.getLogger(__name__)


class Connections:
    """One connection for each worker that this one sends to. Belongs to the event loop."""

    def __init__(
        self,
        context: IContext,
        topology: str,
        on_settled: Callable[[Sequence[Settled]], None],
        on_change: Callable[[], None],
        assignment_version: Callable[[], int],
    ) -> None:
        """Start without any; the callables are those of IRelayConnection.attach."""
        self._context = context
        self._topology = topology
        self._on_settled = on_settled
        self._on_change = on_change
        self._version = assignment_version
        self._connections: dict[tuple[str, str], IRelayConnection] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._leaving: dict[tuple[str, str], IRelayConnection] = {}

    def refresh(self, needed: Sequence[AssignedWorker], close_timeout: float) -> None:
        """Open what is needed and missing; close what is there and not needed, in the background."""
        wanted = {(worker.worker_id, worker.address): worker for worker in needed}
        for key, worker in wanted.items():
            if key not in self._connections:
                host, port = worker.host_port
                connection = self._context.connect(self._topology, host, port)
                if not isinstance(connection, IRelayConnection):
                    raise ConfigError(
                        f"the transport's {type(connection).__name__} cannot carry a worker's messages: "
                        "it is not an IRelayConnection"
                    )
                connection.attach(self._on_settled, self._on_change, self._version)
                self._connections[key] = connection
                logger.info("connection.opened", extra={"worker": worker.worker_id, "peer": worker.address})
        for key in [key for key in self._connections if key not in wanted]:
            self._leaving[key] = connection = self._connections.pop(key)
            task = asyncio.create_task(self._close(key, connection, close_timeout), name=f"close {key[1]}")
            self._closing.add(task)
            watched(task).add_done_callback(self._closing.discard)

    async def _close(self, key: tuple[str, str], connection: IRelayConnection, timeout: float) -> None:
        await asyncio.to_thread(connection.close, timeout)
        self._leaving.pop(key, None)
        left = connection.statistics().ledger.dropped
        logger.info("connection.closed", extra={"worker": key[0], "peer": key[1], "dropped": left})

    def get(self, worker: AssignedWorker) -> IRelayConnection | None:
        """Return the connection to a worker."""
        return self._connections.get((worker.worker_id, worker.address))

    @property
    def not_ready(self) -> list[str]:
        """The ids of the workers to which there is no session at the moment."""
        return sorted(
            worker_id
            for (worker_id, _), connection in self._connections.items()
            if connection.status is not ConnectionStatus.READY
        )

    @property
    def pending_messages(self) -> int:
        """Messages that were handed over and are not settled."""
        return sum(peer.statistics.ledger.pending for peer in self.snapshot())

    def snapshot(self) -> list[PeerSnapshot]:
        """Return every connection as it is."""
        return [
            PeerSnapshot(
                worker_id, address, connection.status is ConnectionStatus.READY, connection.statistics()
            )
            for (worker_id, address), connection in (*self._connections.items(), *self._leaving.items())
        ]

    def loads(self, tasks: Sequence[int]) -> dict[int, float]:
        """Return the last reported loads of remote tasks."""
        loads: dict[int, float] = {}
        for connection in self._connections.values():
            loads.update(connection.get_load(tasks))
        return loads

    async def close(self, timeout: float) -> None:
        """Close everything: wait for acknowledgements as long as the timeout; the rest is dropped."""
        self.refresh((), timeout)
        if self._closing:
            await asyncio.gather(*self._closing)
