"""The link of executors that have a transport of their own, as Storm's workers do."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence

from tuplewire.group import TaskGroup
from tuplewire.message import TaskMessageBatch
from tuplewire.topology.link import Failed, Link, Receive
from tuplewire_service.messaging.base import IClientConnection, IContext
from tuplewire_service.topology.callback import DeserializingConnectionCallback

logger = logging.getLogger(__name__)

Address = tuple[str, int]


class ContextLink(Link):
    """Binds a port for the tasks of this worker, and connects to every other worker.

    What arrives before open() waits. Messages to a task that nobody has are refused: counted and logged.
    """

    def __init__(self, context: IContext, topology_id: str) -> None:
        self.refused = 0
        """Messages that had no destination."""
        self._context = context
        self._topology_id = topology_id
        self._server = context.bind(topology_id, 0)
        self._connections: dict[Address, IClientConnection] = {}
        self._owners: Mapping[int, IClientConnection] = {}

    @property
    def port(self) -> int:
        """The port that is bound."""
        return self._server.port

    def connect(self, owners: Mapping[int, Address]) -> None:
        """Connect to the workers that have the tasks of others; before anything is sent."""
        for host, port in set(owners.values()):
            self._connections[host, port] = self._context.connect(self._topology_id, host, port)
        self._owners = {task: self._connections[address] for task, address in owners.items()}

    def open(self, tasks: Sequence[range], receive: Receive, failed: Failed) -> None:  # noqa: ARG002
        """See Link. A connection that breaks is made again, and never fails for good."""
        here = [task for each in tasks for task in each]
        self._server.register_recv(DeserializingConnectionCallback(here, receive))

    def send(self, groups: Sequence[TaskGroup]) -> None:
        """See Link. Groups by destination: each other worker gets one batch."""
        by_owner: dict[IClientConnection, list[TaskGroup]] = {}
        for group in groups:
            owner = self._owners.get(group.task)
            if owner is None:
                self.refused += len(group)
                logger.warning("messages.refused", extra={"task": group.task, "messages": len(group)})
            else:
                by_owner.setdefault(owner, []).append(group)
        for owner, some in by_owner.items():
            owner.send(TaskMessageBatch.from_groups(some))

    def loads(self) -> Mapping[int, float]:
        """See Link."""
        loads: dict[int, float] = {}
        for connection in self._connections.values():
            loads |= connection.get_load(
                [task for task, owner in self._owners.items() if owner is connection]
            )
        return loads

    def report(self, loads: Mapping[int, float]) -> None:
        """See Link."""
        self._server.send_load_metrics(loads)

    def lost(self) -> int:
        """See Link."""
        connections = self._connections.values()
        dropped = sum(sum(each.statistics().ledger.dropped.values()) for each in connections)
        return self.refused + dropped

    def close(self, timeout: float) -> None:
        """See Link. What nobody has taken by then is dropped, and logged."""
        deadline = time.monotonic() + timeout
        for connection in self._connections.values():
            connection.close(max(0.0, deadline - time.monotonic()))
            dropped = connection.statistics().ledger.dropped
            if any(dropped.values()):
                reasons = {reason: count for reason, count in dropped.items() if count}
                logger.warning("messages.dropped", extra={"port": connection.port, "reasons": reasons})
        self._server.close(max(0.1, deadline - time.monotonic()))
