"""A worker of a local cluster: executors, and an embedded worker if the topology has several workers.

Used by local_topology.py. Owns both. Not thread-safe, like ExecutorWorker. Design: docs/design/topologies.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from tuplewire.connection.loop import messaging_loop
from tuplewire_service.process.embedded_worker import EmbeddedWorker
from tuplewire_topology.authoring.description import Topology
from tuplewire_topology.authoring.topology_settings import TopologySettings
from tuplewire_topology.running.executor import Executor
from tuplewire_topology.running.executor_worker import ExecutorWorker
from tuplewire_topology.running.idle import ProcessReport
from tuplewire_topology.running.link import Link
from tuplewire_topology.running.outgoing import outbound_tasks


def link_to(hosted: EmbeddedWorker, topology: Topology, conf: Mapping[str, Any]) -> Link:
    """Return a link from executors to their embedded worker."""
    settings = TopologySettings.from_conf(conf)
    client = hosted.host.client(len(topology.tasks), settings.receive_queue_tuples)
    return Link(client, spouts=topology.spout_tasks, worker=hosted.host)


class LocalWorker(ExecutorWorker):
    """Executors and their embedded worker. Source: Storm's `Worker`, run by its `LocalContainer`.

    `hosted` is None for a single worker. `settings` are passed to ExecutorWorker.
    """

    def __init__(
        self,
        topology: Topology,
        tasks: Collection[int],
        hosted: EmbeddedWorker | None,
        conf: Mapping[str, Any],
        **settings: Any,
    ) -> None:
        self.dead = False
        self.hosted = hosted
        self.link: Link | None = None
        if hosted is None:
            super().__init__(topology, tasks, conf=conf, **settings)
            return
        try:
            self.link = link_to(hosted, topology, conf)
            super().__init__(topology, tasks, link=self.link, port=hosted.port, conf=conf, **settings)
            hosted.host.attach(self, topology.tasks, partial(outbound_tasks, topology))
        except BaseException:
            hosted.abort()
            raise

    def report(self, *, anew: bool = False) -> ProcessReport:
        """See ExecutorWorker.report. At rest also means that all messages for other workers have arrived."""
        report = super().report(anew=anew)
        hosted = self.hosted
        if hosted is None or self.link is None:
            return report
        pending = self.link.pending + messaging_loop().call(lambda: hosted.held_messages)
        return replace(report, at_rest=report.at_rest and not pending)

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
