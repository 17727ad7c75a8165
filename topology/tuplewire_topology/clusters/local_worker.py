"""A worker of a local cluster: executors, and a worker around them where there are others."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Collection, Mapping
from typing import Any

from tuplewire.connection.loop import messaging_loop
from tuplewire.session.ledger import LedgerSnapshot
from tuplewire.text.events import event_logger
from tuplewire_service.config.config_sources import settings_in, transport_settings_in
from tuplewire_service.config.worker_config import WorkerConfig
from tuplewire_service.messaging.base import IContext
from tuplewire_service.messaging.factory import TransportFactory
from tuplewire_service.messaging.transport_settings import TransportSettings
from tuplewire_service.worker.assignment import Assignment
from tuplewire_service.worker.worker import Worker
from tuplewire_service.worker.worker_settings import of_transport
from tuplewire_topology.authoring.description import Topology
from tuplewire_topology.authoring.topology_settings import TopologySettings
from tuplewire_topology.clusters.worker_link import WorkerLink
from tuplewire_topology.coordination.termination import IdleWatch
from tuplewire_topology.running.executor import Executor
from tuplewire_topology.running.executor_worker import ExecutorWorker

logger = event_logger(__name__)

_HOST = "127.0.0.1"


def context_of(conf: Mapping[str, Any], config: WorkerConfig, incarnation: int = 0) -> IContext:
    """Return what joins a worker of this process with the others; ConfigError for what cannot be."""
    of_worker = TransportSettings(**of_transport(config, incarnation))
    own = transport_settings_in(conf)
    return TransportFactory.make_context({**own, **of_worker.conf()})


def config_of(conf: Mapping[str, Any], worker_id: str, topology_id: str) -> WorkerConfig:
    """Return the settings of a worker of this process; ConfigError."""
    given = settings_in(conf, of_processes=False)
    return WorkerConfig(**{**given, "worker_id": worker_id, "topology": topology_id})


class HostedWorker:
    """A worker in this process, on its event loop, with the link of its executors.

    conf: settings by Storm's keys, and those of a worker; see settings_in.
    """

    def __init__(self, worker_id: str, topology_id: str, topology: Topology, conf: Mapping[str, Any]) -> None:
        config = config_of(conf, worker_id, topology_id)
        incarnation = time.time_ns()
        self._loop = messaging_loop()
        self._context = context_of(conf, config, incarnation)
        self.worker = self._loop.call(lambda: Worker(config, self._context, incarnation))
        self._loop.run(self.worker.start(0))
        # host:port, or ipc://.../port.ipc in ZeroMQ's local mode
        self.port = int(re.split("[:/]", self.worker.servers.addresses[0].removesuffix(".ipc"))[-1])
        self.link = WorkerLink(self.worker, topology, TopologySettings.from_conf(conf))

    @property
    def peer(self) -> tuple[str, str]:
        """Its id and address."""
        return self.worker.settings.worker_id, f"{_HOST}:{self.port}"

    def assign(self, assignment: Assignment, dead: Collection[tuple[str, str]]) -> None:
        """Put an assignment in force; dead: workers that were killed."""

        def update() -> None:
            self.worker.router.lose(dead)
            self.worker.update_assignment(assignment)

        self._loop.call(update)

    def ledger(self) -> LedgerSnapshot:
        """Return its balance."""
        return self._loop.call(self.worker.router.ledger)

    def abort(self) -> None:
        """End it as if its process were killed."""
        self.link.abort()
        self._loop.run(self.worker.abort())
        self._context.term()

    def close(self, timeout: float) -> None:
        """See off what it has, for at most so many seconds, and end it; what is dropped is logged."""
        dropped = self._loop.run(self.worker.drain(timeout)).dropped
        if reasons := {reason: count for reason, count in dropped.items() if count}:
            logger.warning("messages.dropped", extra={"worker": self.peer[0], "reasons": reasons})
        self._context.term()


class LocalWorker(ExecutorWorker):
    """Executors, and the worker around them. Source: Storm's `Worker`, as its `LocalContainer` runs it.

    hosted: that worker; None for executors that are alone. moved: see IdleWatch. settings: further arguments
    of ExecutorWorker. dead: whether it was killed.
    """

    def __init__(
        self,
        topology: Topology,
        tasks: Collection[int],
        hosted: HostedWorker | None,
        moved: threading.Condition,
        **settings: Any,
    ) -> None:
        self.dead = False
        self.hosted = hosted
        if hosted is None:
            super().__init__(topology, tasks, idle=IdleWatch(moved), **settings)
            return
        try:
            super().__init__(
                topology, tasks, link=hosted.link, idle=IdleWatch(moved), port=hosted.port, **settings
            )
        except BaseException:
            hosted.abort()
            raise
        hosted.link.executors = self

    @property
    def pending(self) -> int:
        """Messages that are on the way to other workers."""
        return 0 if self.hosted is None else self.hosted.link.pending

    def kill(self, timeout: float) -> list[Executor[Any]]:
        """End it as if its process were killed; see ExecutorWorker.kill."""
        self.dead = True
        left = super().kill(0.0)
        if self.hosted is not None:
            self.hosted.abort()
        return [executor for executor in left if not executor.join(timeout)]

    def close(self, timeout: float = 10.0) -> None:
        """End it in good order; see ExecutorWorker.close."""
        try:
            super().close(timeout)
        finally:
            if self.hosted is not None and not self.dead:
                self.hosted.close(timeout)


def rests(epochs: Mapping[LocalWorker, int]) -> bool:
    """Whether workers have nothing to do: no tuple in a queue, in an executor's hands or on the way.

    epochs: of IdleWatch, by worker; those that are dead do not count. The workers are looked at one after the
    other; that nothing has begun anywhere meanwhile says that what was seen of each still holds for all.
    """
    living = [(worker, epoch) for worker, epoch in epochs.items() if not worker.dead]
    before = [worker.idle.begun for worker, _ in living]
    return (
        all(worker.idle.empty and worker.finished(epoch) for worker, epoch in living)
        and not any(worker.pending for worker, _ in living)
        and before == [worker.idle.begun for worker, _ in living]
    )
