"""Makes the faults of a plan happen, each in a thread of its own, and undoes them."""

from __future__ import annotations

import random
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Protocol, Self

from campaigns.chaos.cluster import Cluster
from campaigns.chaos.faults import Fault, Kind
from campaigns.chaos.network import Network, calm, disturb
from campaigns.chaos.programs import Program

_THREADS = 32


class Signalled(Protocol):
    """What takes signals as a process does."""

    def signal(self, number: signal.Signals, /) -> None:
        """Take a signal."""


class Injector(ABC):
    """Begins faults without waiting for their ends; a context manager, whose end ends them all.

    Two faults of one target follow each other. say: prints a line.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._stop = threading.Event()
        self._say = say
        self._locks: defaultdict[str, threading.RLock] = defaultdict(threading.RLock)
        self._pool = ThreadPoolExecutor(_THREADS, "fault")
        self._running: list[Future[None]] = []

    @abstractmethod
    def _happens(self, fault: Fault) -> None:
        """Make a fault happen, and undo it, sooner if the run ends."""

    def _lock_of(self, target: str) -> threading.RLock:
        """Return what is held by whoever has to do with a target."""
        return self._locks[target]

    def begin(self, fault: Fault) -> None:
        """Make a fault happen, as soon as the one before of the same target is over."""
        self._running.append(self._pool.submit(self._inject, fault))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End every fault and wait for that; raises what went wrong with one."""
        self._stop.set()
        self._pool.shutdown()
        for each in self._running:
            each.result()

    def _inject(self, fault: Fault) -> None:
        with self._lock_of(fault.target):
            if self._stop.is_set():
                return
            self._say(str(fault))
            start = time.monotonic()
            self._happens(fault)
            if not fault.seconds and fault.kind is not Kind.CUT:
                self._say(f"  over after {time.monotonic() - start:.1f} s: {fault}")

    def _suspend(self, process: Signalled, seconds: float) -> None:
        process.signal(signal.SIGSTOP)
        self._stop.wait(seconds)
        process.signal(signal.SIGCONT)


class ClusterInjector(Injector):
    """The faults of a run with workers."""

    def __init__(
        self,
        cluster: Cluster,
        network: Network,
        programs: dict[str, Program],
        seed: int,
        say: Callable[[str], None],
    ) -> None:
        super().__init__(say)
        self.drains: list[tuple[str, str]] = []
        """The workers that were drained, and what was wrong with that, if anything."""
        self._cluster = cluster
        self._network = network
        self._programs = programs
        self._chance = random.Random(seed)

    def _lock_of(self, target: str) -> threading.RLock:
        if target in self._cluster.slots:
            return self._cluster.slots[target].lock
        return self._programs[target].lock if target in self._programs else super()._lock_of(target)

    def _happens(self, fault: Fault) -> None:
        match fault.kind:
            case Kind.CUT:
                self._network.proxies[fault.target].cut()
            case Kind.BLACK_HOLE | Kind.HALF_OPEN | Kind.DELAY | Kind.THROTTLE:
                proxy = self._network.proxies[fault.target]
                disturb(proxy, fault)
                self._stop.wait(fault.seconds)
                calm(proxy, fault)
            case Kind.CONTROL:
                control = self._network.control[fault.target.removeprefix("to ")]
                control.begin()
                self._stop.wait(fault.seconds)
                control.heal()
            case Kind.STOP_WORKER:
                self._suspend(self._cluster.slots[fault.target], fault.seconds)
            case Kind.STOP_PRODUCER | Kind.STOP_CONSUMER:
                self._suspend(self._programs[fault.target], fault.seconds)
            case Kind.KILL_CONSUMER:
                self._programs[fault.target].restart()
            case Kind.KILL_WORKER:
                slot = self._cluster.slots[fault.target]
                slot.end(killed=True)
                self._stop.wait(fault.seconds)
                slot.start()
            case Kind.RESTART_WORKER:
                slot = self._cluster.slots[fault.target]
                self.drains.append((fault.target, slot.end()))
                slot.start()
            case Kind.MOVE:
                task = int(fault.target.removeprefix("task "))
                workers = str(fault.value).removeprefix("to ").split(" and to ")
                self._cluster.move(task, workers, self._network.address, self._chance, self._stop)
