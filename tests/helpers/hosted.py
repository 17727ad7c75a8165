"""Workers of this process with the links of their executors, joined by an assignment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from tuplewire_service.messaging.factory import TRANSPORT_KEY
from tuplewire_service.worker.assignment import AssignedWorker, Assignment
from tuplewire_topology import Topology
from tuplewire_topology.clusters.local_worker import HostedWorker

TOPOLOGY = "t"


def host(
    name: str, topology: Topology, transport: str = "local", conf: Mapping[str, Any] | None = None
) -> HostedWorker:
    """Start a worker of this process, without an assignment."""
    return HostedWorker(name, TOPOLOGY, topology, {**(conf or {}), TRANSPORT_KEY: transport})


def assign(version: int, shares: Mapping[HostedWorker, Sequence[int]]) -> None:
    """Tell workers who has which tasks."""
    assignment = Assignment(
        version, TOPOLOGY, tuple(AssignedWorker(*each.peer, tuple(share)) for each, share in shares.items())
    )
    for each in shares:
        each.assign(assignment, ())


@contextmanager
def hosted(
    topology: Topology,
    *shares: Sequence[int],
    transport: str = "local",
    conf: Mapping[str, Any] | None = None,
) -> Iterator[list[HostedWorker]]:
    """Run a worker for each share of tasks; they end with the block, and see off what they have."""
    with ExitStack() as stack:
        workers: list[HostedWorker] = []
        for number in range(len(shares)):
            workers.append(host(f"w{number}", topology, transport, conf))
            stack.callback(workers[-1].close, 1.0)
        assign(1, dict(zip(workers, shares, strict=True)))
        yield workers
