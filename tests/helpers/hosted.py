"""Embedded workers with the links of their executors, joined by an assignment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from tuplewire.wire.control_pb2 import GetStatusResponse
from tuplewire_service.messaging.factory import TRANSPORT_KEY
from tuplewire_service.process.embedded_worker import EmbeddedWorker
from tuplewire_topology import Topology
from tuplewire_topology.running.link import Link

TOPOLOGY = "t"


class Hosted(EmbeddedWorker):
    """A worker of this process, and a link to it."""

    def __init__(self, name: str, topology: Topology, conf: Mapping[str, Any]) -> None:
        super().__init__(name, TOPOLOGY, conf)
        self.link = Link.for_worker(self.handle, topology, conf)
        self.worker = self._worker

    def status(self) -> GetStatusResponse:
        return self._loop.call(self.worker.status)

    def abort(self) -> None:
        """Stop the worker and its link as if the process were killed."""
        self.link.abort()
        super().abort()

    def close(self, timeout: float) -> None:
        """Close the worker cleanly, and stop its link."""
        super().close(timeout)
        self.link.abort()


def host(
    name: str, topology: Topology, transport: str = "local", conf: Mapping[str, Any] | None = None
) -> Hosted:
    """Start a worker of this process, without an assignment."""
    return Hosted(name, topology, {**(conf or {}), TRANSPORT_KEY: transport})


def assign(version: int, shares: Mapping[Hosted, Sequence[int]]) -> None:
    """Send workers an assignment of tasks."""
    for each in shares:
        each.assign(version, {hosted.peer: share for hosted, share in shares.items()})


@contextmanager
def hosted(
    topology: Topology,
    *shares: Sequence[int],
    transport: str = "local",
    conf: Mapping[str, Any] | None = None,
) -> Iterator[list[Hosted]]:
    """Run a worker for each share of tasks. They close cleanly at the end of the block."""
    with ExitStack() as stack:
        workers: list[Hosted] = []
        for number in range(len(shares)):
            workers.append(host(f"w{number}", topology, transport, conf))
            stack.callback(workers[-1].close, 1.0)
            stack.callback(workers[-1].link.abort)  # a drain would wait for its subscription
        assign(1, dict(zip(workers, shares, strict=True)))
        yield workers
