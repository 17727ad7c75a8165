"""A worker of a local cluster: executors, and an embedded worker if it is one of several. Not thread-safe."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from tuplewire.connection.loop import messaging_loop
from tuplewire_service.process.embedded_worker import EmbeddedWorker
from tuplewire_topology.authoring.description import Topology
from tuplewire_topology.running.executor import Executor
from tuplewire_topology.running.executor_worker import ExecutorWorker
from tuplewire_topology.running.idle import ProcessReport
from tuplewire_topology.running.link import Link
from tuplewire_topology.running.outgoing import outbound_tasks


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
        if hosted is None:
            super().__init__(topology, tasks, conf=conf, **settings)
            return
        try:
            link = Link.to(hosted.host, topology, conf)
            super().__init__(topology, tasks, link=link, port=hosted.port, conf=conf, **settings)
            hosted.host.attach(self, topology.tasks, partial(outbound_tasks, topology))
        except BaseException:
            hosted.abort()
            raise

    def report(self, *, new_epoch: bool = False) -> ProcessReport:
        """See ExecutorWorker.report. At rest also means that all messages for other workers have arrived."""
        report = super().report(new_epoch=new_epoch)
        hosted = self.hosted
        if hosted is None or self.link is None:
            return report
        pending = self.link.pending + messaging_loop().call(lambda: hosted.held_messages)
        return replace(report, at_rest=report.at_rest and not pending)

    def kill(self, timeout: float) -> list[Executor[Any]]:
        """End like a killed process: send nothing more.

        Returns the executors that are still in user code after `timeout` seconds; they end after that call.
        """
        self.dead = True
        self.abandon()
        if self.hosted is not None:
            self.hosted.abort()
        return self._still_running(time.monotonic() + timeout)

    def close(self, timeout: float = 10.0) -> None:
        try:
            super().close(timeout)
        finally:
            if self.hosted is not None and not self.dead:
                self.hosted.close(timeout)
