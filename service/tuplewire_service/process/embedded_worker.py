"""A worker in the calling process, on its messaging loop.

Used by the local clusters of topologies, and by tests. Owns the worker and its transports. Thread-safe.
Source: Storm's `LocalContainer`. Design: docs/design/topologies.md.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tuplewire.connection.loop import messaging_thread
from tuplewire.settings.addresses import Peer
from tuplewire.text.events import event_logger
from tuplewire_service.config.config_sources import embedded_transport_conf, settings_in
from tuplewire_service.config.worker_config import WorkerConfig
from tuplewire_service.messaging.factory import TransportFactory
from tuplewire_service.messaging.local import OwnProgramContext
from tuplewire_service.messaging.transport_settings import TransportSettings
from tuplewire_service.process.program import Host
from tuplewire_service.worker.assignment import AssignedWorker, Assignment
from tuplewire_service.worker.worker import Worker
from tuplewire_service.worker.worker_settings import transport_settings

logger = event_logger(__name__)


class EmbeddedWorker:
    """A worker in this process, with a Host for the program that uses it."""

    def __init__(self, worker_id: str, topology: str, conf: Mapping[str, Any]) -> None:
        """Start without an assignment. `conf`: see settings_in(). Raises ConfigError."""
        given = settings_in(conf, separate_processes=False)
        config = WorkerConfig(**{**given, "worker_id": worker_id, "topology": topology})
        incarnation = time.time_ns()
        of_worker = TransportSettings(**transport_settings(config, incarnation))
        self._loop = messaging_thread()
        self._own_transport = OwnProgramContext(of_worker)
        self._context = TransportFactory.make_context({**embedded_transport_conf(conf), **of_worker.conf()})
        self._worker = self._loop.call(
            lambda: Worker(config, self._context, incarnation, own_program_context=self._own_transport)
        )
        self._loop.run(self._worker.start(0))
        self.handle = Host(self._worker, lambda _: None)  # the process belongs to the embedding program
        # The address is host:port, or ipc://.../port.ipc in ZeroMQ's local mode.
        self.port = int(re.split("[:/]", self._worker.servers.addresses[0].removesuffix(".ipc"))[-1])
        self.peer = Peer(worker_id, f"127.0.0.1:{self.port}")  # for other workers

    def assign(
        self, version: int, assigned: Mapping[Peer, Sequence[int]], dead: Collection[Peer] = ()
    ) -> None:
        """Apply an assignment: the tasks of each peer. `dead` are workers that were killed."""
        workers = (AssignedWorker(*peer, tuple(sorted(tasks))) for peer, tasks in assigned.items())
        assignment = Assignment(version, self.handle.topology, tuple(workers))

        def update() -> None:
            self._worker.router.dead_peers.update(dead)  # first: the assignment then reroutes their messages
            self._worker.update_assignment(assignment)

        self._loop.call(update)

    @property
    def held_messages(self) -> int:
        """Number of accepted messages that are not settled. Call only from the event loop."""
        return self._worker.router.pending_messages

    def abort(self) -> None:
        """Stop immediately, like a killed process."""
        self._loop.run(self._worker.abort())
        self._end()

    def close(self, timeout: float) -> None:
        """Drain for at most `timeout` seconds, and close. Dropped messages are logged."""
        dropped = self._loop.run(self._worker.drain(timeout)).dropped
        if reasons := {reason: count for reason, count in dropped.items() if count}:
            extra = {"worker": self.peer.worker_id, "messages_by_reason": reasons}
            logger.warning("worker.messages_dropped", extra=extra)
        self._end()

    def _end(self) -> None:
        for context in (self._context, self._own_transport):
            context.term()
