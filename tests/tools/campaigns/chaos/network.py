"""The ways of a chaos run with workers: a fault proxy on each, and a lossy control channel to each worker."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from campaigns.chaos.layout import CONSUMERS, PRODUCERS, WORKERS, way
from helpers.control_faults import ControlFaults

from tuplewire.processes.worker_processes import Endpoint
from tuplewire_service.testing.fault_proxy import FaultProxy

LATENCY_SECONDS = 0.01
"""Of each way: some data is always in flight, for a fault to hit."""


class Network:
    """Every way that can have a fault, until the stack closes.

    endpoints: the workers, which keep their addresses when they restart.
    """

    def __init__(
        self, stack: ExitStack, endpoints: Mapping[str, Endpoint], directory: Path, seed: int
    ) -> None:
        self.proxies: dict[str, FaultProxy] = {}
        self.control = {
            worker: stack.enter_context(ControlFaults(endpoints[worker].address, seed=seed + index))
            for index, worker in enumerate(WORKERS)
        }
        self._endpoints = endpoints
        for near in WORKERS:
            for far in WORKERS:
                if near != far:
                    peer = endpoints[far].peer_address or self.control[far].address
                    self.proxies[way(near, far)] = proxy(stack, peer)
        for each in (*PRODUCERS, *CONSUMERS):
            for worker in each.workers if each.proxied else ():
                unix = f"unix://{directory}/{each.name}-{worker}.sock"
                self.proxies[way(each.name, worker)] = (
                    proxy(stack, self.control[worker].address)
                    if each.control
                    else proxy(stack, endpoints[worker].unix_address, unix)
                )

    def address(self, near: str, worker: str) -> str:
        """Return the address at which a program, or another worker, reaches a worker."""
        found = self.proxies.get(way(near, worker))
        return self._endpoints[worker].unix_address if found is None else found.address


def proxy(stack: ExitStack, target: str, listen: str = "127.0.0.1:0") -> FaultProxy:
    """Start a fault proxy with some latency."""
    started = stack.enter_context(FaultProxy(target, listen))
    started.delay(LATENCY_SECONDS)
    return started
