"""The connections of a worker to those that it sends to. Source: Storm's `WorkerState.refreshConnections`."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Mapping, Sequence

from tuplewire.errors import ClosedError
from tuplewire.group import TaskGroup
from tuplewire.message import TaskMessageBatch
from tuplewire.session.ledger import LedgerSnapshot
from tuplewire_service.messaging.base import ConnectionStatus, IClientConnection, IContext

logger = logging.getLogger(__name__)

Address = tuple[str, int]

_CLOSE_SECONDS = 5.0
"""How long a connection that nobody needs any more waits for acknowledgements."""


class OutboundConnections:
    """One connection to each worker that has tasks which are sent to; thread-safe.

    refused: messages that had no destination.
    """

    def __init__(self, context: IContext, topology_id: str) -> None:
        self.refused = 0
        self._context = context
        self._topology_id = topology_id
        self._lock = threading.Lock()
        self._connections: dict[Address, IClientConnection] = {}
        self._owners: Mapping[int, IClientConnection] = {}
        self._leaving: dict[IClientConnection, threading.Thread] = {}
        self._ended = LedgerSnapshot()

    @property
    def ledger(self) -> LedgerSnapshot:
        """The balance of what was sent to all other workers together, in messages."""
        with self._lock:
            total = self._ended
            for each in (*self._connections.values(), *self._leaving):
                total += each.statistics().ledger
            return total

    @property
    def lost(self) -> int:
        """Messages that were handed over and will never arrive, so far."""
        return self.refused + sum(self.ledger.dropped.values())

    @property
    def addresses(self) -> Collection[Address]:
        """The workers to which there are connections."""
        return frozenset(self._connections)

    @property
    def not_ready(self) -> list[Address]:
        """The workers to which no connection stands."""
        connections = list(self._connections.items())
        return sorted(where for where, each in connections if each.status is not ConnectionStatus.READY)

    def _all(self) -> Sequence[IClientConnection]:
        with self._lock:
            return [*self._connections.values(), *self._leaving]

    def refresh(self, owners: Mapping[int, Address]) -> None:
        """Send to these tasks there from now on.

        New connections are opened, those that are needed still are kept, and the others are closed in the
        background, once what they have accepted is acknowledged, or five seconds later.
        """
        with self._lock:
            needed = set(owners.values())
            for host, port in sorted(needed - self._connections.keys()):
                self._connections[host, port] = self._context.connect(self._topology_id, host, port)
                logger.info("connection.opened", extra={"peer": f"{host}:{port}"})
            self._owners = {task: self._connections[address] for task, address in owners.items()}
            for address in sorted(self._connections.keys() - needed):
                self._leave(address, self._connections.pop(address))

    def _leave(self, address: Address, connection: IClientConnection) -> None:
        name = f"close {address[0]}:{address[1]}"
        thread = threading.Thread(target=self._see_off, args=(connection,), name=name, daemon=True)
        self._leaving[connection] = thread
        thread.start()

    def _see_off(self, connection: IClientConnection) -> None:
        end(connection, _CLOSE_SECONDS)
        with self._lock:
            del self._leaving[connection]
            self._ended += connection.statistics().ledger

    def forget(self, address: Address) -> None:
        """End the connection to a worker that is gone, and what is on the way to it."""
        with self._lock:
            connection = self._connections.pop(address, None)
            self._owners = {task: each for task, each in self._owners.items() if each is not connection}
        if connection is not None:
            connection.abort()
            with self._lock:
                self._ended += connection.statistics().ledger

    def send(self, groups: Sequence[TaskGroup]) -> None:
        """Send each worker its messages in one batch, waiting for room; ClosedError once closed."""
        by_owner: dict[IClientConnection, list[TaskGroup]] = {}
        owners = self._owners
        for group in groups:
            owner = owners.get(group.task)
            if owner is None:
                with self._lock:
                    self.refused += len(group)
                logger.warning("messages.refused", extra={"task": group.task, "messages": len(group)})
            else:
                by_owner.setdefault(owner, []).append(group)
        for owner, some in by_owner.items():
            try:
                owner.send(TaskMessageBatch.from_groups(some))
            except ClosedError:
                if owners is self._owners:
                    raise
                self.send(some)  # they have moved since

    def loads(self) -> dict[int, float]:
        """Return the load of each task that a worker has told of."""
        loads: dict[int, float] = {}
        owners = self._owners
        for connection in set(owners.values()):
            loads |= connection.get_load([task for task, owner in owners.items() if owner is connection])
        return loads

    def abort(self) -> None:
        """End everything now."""
        for connection in self._all():
            connection.abort()

    def close(self, timeout: float) -> None:
        """Wait until what was accepted is acknowledged, at most so many seconds, and end everything.

        What nobody has taken by then is dropped, and logged.
        """
        deadline = time.monotonic() + timeout
        for connection in list(self._connections.values()):
            end(connection, max(0.0, deadline - time.monotonic()))
        for connection, thread in list(self._leaving.items()):
            thread.join(max(0.0, deadline - time.monotonic()))
            connection.abort()
            thread.join()


def end(connection: IClientConnection, timeout: float) -> None:
    """Close a connection, and log what was not seen off."""
    connection.close(timeout)
    dropped = connection.statistics().ledger.dropped
    if any(dropped.values()):
        reasons = {reason: count for reason, count in dropped.items() if count}
        logger.warning("messages.dropped", extra={"port": connection.port, "reasons": reasons})
