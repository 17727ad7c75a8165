"""A worker of a local cluster: executors, and an embedded worker if the topology has several workers.

Used by local_topology.py. Owns both. Not thread-safe, like ExecutorWorker. Design: docs/design/topologies.md.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import Any

from tuplewire.connection.loop import messaging_loop
from tuplewire_service.process.embedded_worker import EmbeddedWorker
from tuplewire_topology.authoring.description import Topology
from tuplewire_topology.authoring.topology_settings import TopologySettings
from tuplewire_topology.running.executor import Executor
from tuplewire_topology.running.executor_worker import ExecutorWorker
from tuplewire_topology.running.idle import IdleWatch
from tuplewire_topology.running.link import Link
from tuplewire_topology.running.outgoing import outbound_tasks


def link_to(hosted: EmbeddedWorker, topology: Topology, conf: Mapping[str, Any]) -> Link:
    """Return a link from executors to their embedded worker."""
    settings = TopologySettings.from_conf(conf)
    client = hosted.host.client(len(topology.tasks), settings.receive_queue_tuples)
    return Link(client, spouts=topology.spout_tasks, worker=hosted.host)


class LocalWorker(ExecutorWorker):
    """Executors and their embedded worker. Source: Storm's `Worker`, run by its `LocalContainer`.

    `hosted` is None for a single worker. `moved`: see IdleWatch. `settings` are passed to ExecutorWorker.
    """

    def __init__(
        self,
        topology: Topology,
        tasks: Collection[int],
        hosted: EmbeddedWorker | None,
        moved: threading.Condition,
        conf: Mapping[str, Any],
        **settings: Any,
    ) -> None:
        self.dead = False
        self.hosted = hosted
        self.link: Link | None = None
        idle = IdleWatch(moved)
        if hosted is None:
            super().__init__(topology, tasks, idle=idle, conf=conf, **settings)
            return
        try:
            self.link = link_to(hosted, topology, conf)
            super().__init__(
                topology, tasks, link=self.link, idle=idle, port=hosted.port, conf=conf, **settings
            )
            hosted.host.attach(self, topology.tasks, partial(outbound_tasks, topology))
        except BaseException:
            hosted.abort()
            raise

    @property
    def pending(self) -> int:
        """The number of messages in the client and in the worker. Call only from the event loop."""
        if self.hosted is None or self.link is None or self.dead:
            return 0
        return self.link.pending + self.hosted.held_messages

    def kill(self, timeout: float) -> list[Executor[Any]]:
        """End like a killed process; see ExecutorWorker.kill."""
        self.dead = True
        left = super().kill(0.0)  # no wait yet: executors may wait for the link, which ends below
        if self.hosted is not None and self.link is not None:
            self.link.abort()
            self.hosted.abort()
        return [executor for executor in left if not executor.join(timeout)]

    def close(self, timeout: float = 10.0) -> None:
        """End cleanly; see ExecutorWorker.close."""
        try:
            super().close(timeout)
        finally:
            if self.hosted is not None and not self.dead:
                self.hosted.close(timeout)


def rests(epochs: Mapping[LocalWorker, int]) -> bool:
    """Return True if no tuple is queued, executed or in flight in any living worker.

    Checks one worker after another. If `begun` is then unchanged, the results were all true at one moment.
    """
    living = [(worker, epoch) for worker, epoch in epochs.items() if not worker.dead]
    before = [worker.idle.begun for worker, _ in living]
    return (
        all(worker.idle.empty and worker.finished(epoch) for worker, epoch in living)
        and not _pending(worker for worker, _ in living)
        and before == [worker.idle.begun for worker, _ in living]
    )


def _pending(workers: Iterable[LocalWorker]) -> int:
    """Return the number of messages between workers, read at one moment of the event loop."""
    hosted = [worker for worker in workers if worker.hosted is not None]
    return messaging_loop().call(lambda: sum(worker.pending for worker in hosted)) if hosted else 0
