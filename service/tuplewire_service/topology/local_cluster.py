"""Topologies in one process, workers and all: to develop and to test them. Source: Storm's `LocalCluster`."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from tuplewire.errors import ConfigError, TopologyError, TuplewireError
from tuplewire.topology.acker import Acker
from tuplewire.topology.description import Topology
from tuplewire.topology.executor import ExecutorStatistics
from tuplewire.topology.failure import DeadLetter, TaskError
from tuplewire.topology.idle import IdleWatch
from tuplewire.topology.receive_queue import AddressedTuples
from tuplewire.topology.settings import TopologySettings
from tuplewire.topology.timer import SimulatedTimer
from tuplewire.topology.worker import ExecutorWorker
from tuplewire_service.messaging.factory import TRANSPORT_KEY, TransportFactory
from tuplewire_service.topology.capture import Captured, with_sources
from tuplewire_service.topology.context_link import ContextLink

_WAIT_SECONDS = 60.0
_KILL_SECONDS = 10.0
_REMEMBERED = 1000


@dataclass(frozen=True, slots=True)
class TopologyStatus:
    """A snapshot of a topology. state: ACTIVE, INACTIVE or FAILED, as Storm's."""

    name: str
    state: str
    executors: Sequence[ExecutorStatistics]


class LocalTopology:
    """A topology that runs. Source: Storm's `ILocalTopology`. Made by LocalCluster.submit.

    captured: everything that its components emitted. errors, dead_letters: the last thousand of each.
    """

    def __init__(
        self, name: str, conf: Mapping[str, Any], topology: Topology, timer: SimulatedTimer | None
    ) -> None:
        self.name = name
        self.captured = Captured()
        self.errors: deque[TaskError] = deque(maxlen=_REMEMBERED)
        self.dead_letters: deque[DeadLetter] = deque(maxlen=_REMEMBERED)
        self._active = False
        self._idle = IdleWatch()
        self._timer = timer
        self._stack = contextlib.ExitStack()
        self._workers: list[ExecutorWorker] = []
        try:
            self._make_workers(conf, topology)
        except BaseException:
            self.close(0.0)
            raise
        self._worker_of = {task: worker for worker in self._workers for task in worker.tasks}

    def _make_workers(self, conf: Mapping[str, Any], topology: Topology) -> None:
        shares = _shares(topology, TopologySettings.of(conf).workers)
        links = self._links(conf, shares)
        acker = Acker(self._tell)
        for share, link in zip(shares, links, strict=True):
            worker = ExecutorWorker(
                topology,
                share,
                topology_id=self.name,
                conf=conf,
                link=link,
                timer=self._timer,
                acker=acker,
                idle=self._idle,
                error=self.errors.append,
                dead_letter=self.dead_letters.append,
                emitted=self.captured.add,
            )
            self._workers.append(worker)

    def _links(
        self, conf: Mapping[str, Any], shares: Sequence[Sequence[int]]
    ) -> Sequence[ContextLink | None]:
        """Return a link for each of several workers; one alone needs none."""
        if len(shares) == 1:
            return [None]
        context = TransportFactory.make_context({TRANSPORT_KEY: "local", **conf})
        self._stack.callback(context.term)
        links = [ContextLink(context, self.name) for _ in shares]
        for link in links:
            link.connect(
                {
                    task: ("127.0.0.1", other.port)
                    for other, share in zip(links, shares, strict=True)
                    for task in share
                    if other is not link
                }
            )
        return links

    def _tell(self, column: AddressedTuples) -> None:
        self._worker_of[column.task].tell(column)

    def start(self) -> None:
        """Open every task, then have the spouts asked; the TaskError of what cannot be opened."""
        try:
            for worker in self._workers:
                worker.start()
        except BaseException:
            self.close(0.0)
            raise
        self.activate()

    def activate(self) -> None:
        """Have the spouts asked for tuples. Source: Storm's `activate`."""
        self._active = True
        for worker in self._workers:
            worker.activate()

    def deactivate(self) -> None:
        """Have them asked no longer; what is on the way goes on. Source: Storm's `deactivate`."""
        self._active = False
        for worker in self._workers:
            worker.deactivate()

    def wait(self, timeout: float = _WAIT_SECONDS) -> None:
        """Wait until nothing is left to do: no tuple is on the way, and no spout has another now.

        Raises the TaskError by which the topology has failed, and TimeoutError after so many seconds.
        """
        idle = self._idle.wait(self._at_rest, lambda: self.failure is not None, timeout)
        if self.failure is not None:
            raise self.failure
        if not idle:
            raise TimeoutError(f"topology {self.name!r} still had something to do after {timeout} s")

    def _at_rest(self, epoch: int) -> bool:
        return all(worker.at_rest(epoch) for worker in self._workers)

    @property
    def failure(self) -> TuplewireError | None:
        """The error by which it has failed, if it has."""
        return next((worker.failure for worker in self._workers if worker.failure is not None), None)

    def status(self) -> TopologyStatus:
        """Return a snapshot."""
        state = "FAILED" if self.failure is not None else "ACTIVE" if self._active else "INACTIVE"
        return TopologyStatus(
            self.name, state, [each for worker in self._workers for each in worker.statistics()]
        )

    def close(self, timeout: float = _KILL_SECONDS) -> None:
        """Deactivate it, let what is on the way finish, at most so many seconds, and end every worker.

        A topology that has failed is ended at once. Does nothing the second time.
        """
        deadline = time.monotonic() + timeout
        self.deactivate()
        self._idle.wait(self._at_rest, lambda: self.failure is not None, timeout)
        with self._stack:
            if self._timer is not None:
                self._stack.callback(self._timer.close)
            for worker in self._workers:
                rest = 0.0 if self.failure is not None else max(0.0, deadline - time.monotonic())
                self._stack.callback(worker.close, rest)


class LocalCluster:
    """Runs topologies in this process, with the executors, queues and transports that they have elsewhere.

    ::

        with LocalCluster() as cluster:
            running = cluster.submit("words", {}, topology)
            running.wait()
            running.captured.tuples("count")

    A topology of several workers (`topology.workers`) has a transport between them,
    `storm.messaging.transport`: "local" by default, or any other.

    simulated_time: let time pass by advance() only, for ticks.
    """

    def __init__(self, *, simulated_time: bool = False) -> None:
        self._simulated_time = simulated_time
        self._timers: dict[str, SimulatedTimer] = {}
        self._running: dict[str, LocalTopology] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def submit(self, name: str, conf: Mapping[str, Any], topology: Topology) -> LocalTopology:
        """Run a topology; conf: settings by Storm's keys, and the user's own.

        Raises ConfigError for a name that is in use or a setting that is wrong, and the TaskError of a spout
        or bolt that cannot be opened. Source: Storm's `submitTopology`.
        """
        if name in self._running:
            raise ConfigError(f"a topology named {name!r} runs already; kill it, or choose another name")
        timer = SimulatedTimer() if self._simulated_time else None
        running = LocalTopology(name, conf, topology, timer)
        running.start()
        self._running[name] = running
        if timer is not None:
            self._timers[name] = timer
        return running

    def topology(self, name: str) -> LocalTopology:
        """Return one that runs; TopologyError for another name."""
        if name not in self._running:
            known = ", ".join(map(repr, self._running)) or "none"
            raise TopologyError(f"no topology {name!r} runs here; there are {known}")
        return self._running[name]

    def wait(self, name: str, timeout: float = _WAIT_SECONDS) -> None:
        """Wait until a topology has nothing left to do, as LocalTopology.wait says."""
        self.topology(name).wait(timeout)

    def kill(self, name: str, timeout: float = _KILL_SECONDS) -> None:
        """End a topology, as LocalTopology.close says. Source: Storm's `killTopology`."""
        running = self.topology(name)
        del self._running[name]
        self._timers.pop(name, None)
        running.close(timeout)

    def status(self) -> dict[str, TopologyStatus]:
        """Return a snapshot of every topology. Source: Storm's `getClusterInfo`."""
        return {name: running.status() for name, running in self._running.items()}

    def advance(self, seconds: float, increment: float = 1.0) -> None:
        """Let simulated time pass, and have everything that it leads to done after each increment.

        ConfigError for a cluster without simulated time. Source: Storm's `advanceClusterTime`.
        """
        if not self._simulated_time:
            raise ConfigError("time passes by itself here; make the cluster with simulated_time=True")
        left = seconds
        while left > 0:
            for name, timer in self._timers.items():
                timer.advance(min(increment, left))
                self.wait(name)
            left -= increment

    def shutdown(self) -> None:
        """Kill every topology; does nothing the second time. Source: Storm's `shutdown`."""
        with contextlib.ExitStack() as stack:
            for name in list(self._running):
                stack.callback(self.kill, name)


def complete_topology(
    topology: Topology,
    sources: Mapping[str, Sequence[Sequence[Any]]],
    conf: Mapping[str, Any] | None = None,
    timeout: float = _WAIT_SECONDS,
) -> Captured:
    """Run a topology until every given tuple is processed, and return everything that was emitted.

    sources: tuples for each spout, which are emitted in place of its own. Raises the TaskError by which the
    topology fails, and TimeoutError. Source: Storm's `Testing.completeTopology`.
    """
    with LocalCluster() as cluster:
        running = cluster.submit("complete-topology", conf or {}, with_sources(topology, sources))
        running.wait(timeout)
        return running.captured


def _shares(topology: Topology, workers: int) -> list[list[int]]:
    """Deal the executors out to workers in turn, of which there are no more than executors."""
    executors = [tasks for name in topology.components for tasks in topology.executors_of(name)]
    shares: list[list[int]] = [[] for _ in range(min(workers, len(executors)))]
    for number, tasks in enumerate(executors):
        shares[number % len(shares)] += tasks
    return shares
