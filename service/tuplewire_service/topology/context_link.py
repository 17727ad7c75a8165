"""The link of executors that have a transport of their own, as Storm's workers do."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence

from tuplewire.group import TaskGroup
from tuplewire.topology.link import Failed, Link, Receive
from tuplewire_service.messaging.base import IContext
from tuplewire_service.topology.callback import DeserializingConnectionCallback
from tuplewire_service.topology.connections import Address, OutboundConnections
from tuplewire_service.worker.assignment import Assignment

logger = logging.getLogger(__name__)


class ContextLink(Link):
    """Binds a port for the tasks of this worker, and connects to the workers that these send to.

    What arrives before open() waits. Messages to a task that nobody has are refused: counted and logged.
    port: 0 is any free one.
    """

    def __init__(self, context: IContext, topology_id: str, port: int = 0) -> None:
        self.connections = OutboundConnections(context, topology_id)
        self.missing: frozenset[int] = frozenset()
        """Tasks that are sent to, and that the assignment does not name."""
        self._topology_id = topology_id
        self._server = context.bind(topology_id, port)
        self._assignment: Assignment | None = None
        self._outbound: Collection[int] = ()
        self._callback: DeserializingConnectionCallback | None = None

    @property
    def port(self) -> int:
        """The port that is bound."""
        return self._server.port

    @property
    def assignment(self) -> Assignment | None:
        """The assignment in force; None while there is none."""
        return self._assignment

    @property
    def refused(self) -> int:
        """Messages that had no destination."""
        return self.connections.refused

    def connect(self, owners: Mapping[int, Address]) -> None:
        """Send to these tasks there from now on; for those who have no assignment to follow."""
        self.connections.refresh(owners)

    def assign(self, assignment: Assignment, outbound: Collection[int]) -> bool:
        """Follow an assignment; False when it is in force already.

        outbound: the tasks of other workers that those here send to (`outbound_tasks`); connections go to
        their workers, and to no others. Raises StaleAssignmentError for an older version, ConfigError for
        another topology. As the `update` of an AssignmentFile it follows a file.
        """
        if not assignment.succeeds(self._assignment, self._topology_id) and outbound == self._outbound:
            return False
        self._assignment, self._outbound = assignment, outbound
        self.refresh()
        return True

    def refresh(self) -> None:
        """See Link. Storm's "Missing assignment for following tasks" is logged once for each set of them."""
        if self._assignment is None:
            return
        owner_of = self._assignment.owner_of
        missing = frozenset(task for task in self._outbound if task not in owner_of)
        if missing and missing != self.missing:
            logger.warning("assignment.tasks_missing", extra={"tasks": sorted(missing)})
        self.missing = missing
        self.connections.refresh(
            {task: owner_of[task].host_port for task in self._outbound if task in owner_of}
        )

    @property
    def not_ready(self) -> str:
        """See Link. Tasks that are missing are not waited for, as in Storm."""
        waiting = self.connections.not_ready
        return f"no connection to {', '.join(f'{host}:{port}' for host, port in waiting)}" if waiting else ""

    def open(self, tasks: Sequence[range], receive: Receive, failed: Failed) -> None:  # noqa: ARG002
        """See Link. A connection that breaks is made again, and never fails for good."""
        here = [task for each in tasks for task in each]
        self._callback = DeserializingConnectionCallback(here, receive)
        self._server.register_recv(self._callback)

    def serve(self, tasks: Collection[int]) -> None:
        """Take messages for these tasks from now on, and refuse others; once open."""
        if self._callback is not None:
            self._callback.tasks = frozenset(tasks)

    def send(self, groups: Sequence[TaskGroup]) -> None:
        """See Link. Groups by destination: each other worker gets one batch."""
        self.connections.send(groups)

    def loads(self) -> Mapping[int, float]:
        """See Link."""
        return self.connections.loads()

    def report(self, loads: Mapping[int, float]) -> None:
        """See Link."""
        self._server.send_load_metrics(loads)

    def lost(self) -> int:
        """See Link."""
        return self.connections.lost

    def abort(self) -> None:
        """End at once: take nothing, send nothing, as a process that is killed."""
        self._server.abort()
        self.connections.abort()

    def close(self, timeout: float) -> None:
        """See Link. What nobody has taken by then is dropped, and logged."""
        deadline = time.monotonic() + timeout
        self.connections.close(timeout)
        self._server.close(max(0.1, deadline - time.monotonic()))
