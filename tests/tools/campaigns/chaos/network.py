"""The connections of a chaos run with workers: a fault proxy each, and a lossy control channel per worker."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from campaigns.chaos.layout import CONSUMERS, PRODUCERS, WORKERS, way
from helpers.control_faults import ControlFaults

from tuplewire.processes.worker_processes import Endpoint
from tuplewire_service.testing.fault_proxy import FaultProxy

LATENCY_SECONDS = 0.01
"""Latency of each connection: some data is always in flight, so that a fault affects it."""


class Network:
    """All connections that can have a fault, until the stack closes.

    Args:
        stack: Closes the proxies.
        endpoints: The workers, which keep their addresses when they restart.
        directory: The folder of the Unix sockets.
        seed: The seed of the lossy control channels.
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
