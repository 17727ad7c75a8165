"""The ways of a chaos run: a fault proxy on each, and a man in the middle before each worker."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from campaigns.campaign import Action
from campaigns.chaos.faults import Kind
from campaigns.chaos.layout import CONSUMERS, PRODUCERS, WORKERS, ConsumerPlan, ProducerPlan, way
from helpers.control_faults import ControlFaults

from tuplewire.processes.worker_processes import Endpoint
from tuplewire_service.testing.fault_line import Direction
from tuplewire_service.testing.fault_proxy import FaultProxy

LATENCY_SECONDS = 0.01
"""Of each way: something is always in flight, for a fault to hit."""


class Network:
    """Every way that can have a fault, open for as long as the block.

    endpoints: where the workers are, and stay when they are started again.
    """

    def __init__(self, endpoints: dict[str, Endpoint], directory: Path, seed: int) -> None:
        self._endpoints = endpoints
        self._directory = directory
        self.control = {
            worker: ControlFaults(endpoints[worker].address, seed=seed + index)
            for index, worker in enumerate(WORKERS)
        }
        self.proxies: dict[str, FaultProxy] = {}
        self._open = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as opened:
            for each in self.control.values():
                opened.enter_context(each)
            for near in WORKERS:
                for far in WORKERS:
                    if near != far:
                        peer = self._endpoints[far].peer_address
                        self._proxy(opened, way(near, far), peer or self.control[far].address)
            for producer in PRODUCERS:
                if producer.proxied:
                    self._proxy(
                        opened, way(producer.name, producer.worker), self._target(producer.worker, producer)
                    )
            for consumer in CONSUMERS:
                for worker in WORKERS if consumer.proxied else ():
                    self._proxy(opened, way(consumer.name, worker), self._target(worker, consumer))
            self._open = opened.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def _proxy(self, opened: ExitStack, name: str, target: str) -> None:
        listen = "127.0.0.1:0"
        if target.startswith("unix://"):
            listen = f"unix://{self._directory}/{name.replace(' -> ', '-')}.sock"
        self.proxies[name] = opened.enter_context(FaultProxy(target, listen))
        self.proxies[name].delay(LATENCY_SECONDS)

    def _target(self, worker: str, program: ProducerPlan | ConsumerPlan) -> str:
        return self.control[worker].address if program.control else self._endpoints[worker].unix_address

    def address(self, near: str, worker: str) -> str:
        """Return where a program, or another worker, reaches a worker."""
        proxy = self.proxies.get(way(near, worker))
        return self._endpoints[worker].unix_address if proxy is None else proxy.address


def disturb(proxy: FaultProxy, action: Action) -> None:
    """Begin a fault of a way."""
    match action.kind:
        case Kind.BLACK_HOLE:
            proxy.black_hole()
        case Kind.HALF_OPEN:
            proxy.half_open(Direction(str(action.value)))
        case Kind.DELAY:
            proxy.delay(float(action.value))
        case Kind.THROTTLE:
            proxy.throttle(float(action.value))


def calm(proxy: FaultProxy, action: Action) -> None:
    """End it, with a cut where the fault says so: then what was held back is lost."""
    if action.cut:
        proxy.cut()
    proxy.resume()
    proxy.delay(LATENCY_SECONDS)
