"""Where topologies run: in this process, workers and all, or in a process for each worker."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Generic, Self, TypeVar

from tuplewire.errors import ConfigError, TopologyError
from tuplewire_topology.authoring.description import Topology
from tuplewire_topology.clusters.capture import Captured, with_sources
from tuplewire_topology.clusters.distributed_topology import DistributedTopology
from tuplewire_topology.clusters.launch_settings import ClusterMode, LaunchSettings
from tuplewire_topology.clusters.local_topology import (
    KILL_SECONDS,
    WAIT_SECONDS,
    LocalTopology,
    TopologyStatus,
)
from tuplewire_topology.running.timer import SimulatedTimer

_Running = TypeVar("_Running", bound=LocalTopology | DistributedTopology)


class _Cluster(Generic[_Running]):
    """The topologies that run, by name; its end is theirs."""

    def __init__(self) -> None:
        self._running: dict[str, _Running] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def _check_free(self, name: str) -> None:
        if name in self._running:
            raise ConfigError(f"a topology named {name!r} runs already; kill it, or choose another name")

    def topology(self, name: str) -> _Running:
        """Return one that runs; TopologyError for another name."""
        if name not in self._running:
            known = ", ".join(map(repr, self._running)) or "none"
            raise TopologyError(f"no topology {name!r} runs here; there are {known}")
        return self._running[name]

    def wait(self, name: str, timeout: float = WAIT_SECONDS) -> None:
        """Wait until a topology has nothing left to do, as that says itself."""
        self.topology(name).wait(timeout)

    def kill(self, name: str, timeout: float = KILL_SECONDS) -> None:
        """End a topology, as that says itself. Source: Storm's `killTopology`."""
        running = self.topology(name)
        del self._running[name]
        running.close(timeout)

    def status(self) -> dict[str, TopologyStatus]:
        """Return a snapshot of every topology. Source: Storm's `getClusterInfo`."""
        return {name: running.status() for name, running in self._running.items()}

    def shutdown(self) -> None:
        """Kill every topology; does nothing the second time. Source: Storm's `shutdown`."""
        with contextlib.ExitStack() as stack:
            for name in list(self._running):
                stack.callback(self.kill, name)


class LocalCluster(_Cluster[LocalTopology]):
    """Runs topologies in this process, with the executors, queues and transports that they have elsewhere.

    ::

        with LocalCluster() as cluster:
            running = cluster.submit("words", {}, topology)
            running.wait()
            running.captured.tuples("count")

    A topology of several workers (`topology.workers`) has a transport between them,
    `storm.messaging.transport`: "local" by default, or any other.

    simulated_time: let time pass by advance() only, for ticks. Source: Storm's `LocalCluster`.
    """

    def __init__(self, *, simulated_time: bool = False) -> None:
        super().__init__()
        self._simulated_time = simulated_time

    def submit(
        self,
        name: str,
        conf: Mapping[str, Any],
        topology: Topology,
        collect: Sequence[str] | None = None,
    ) -> LocalTopology:
        """Run a topology; conf: settings by Storm's keys, and the user's own.

        collect: the components of which what they emit is kept to be looked at; by default all, and what they
        receive as well.
        Raises ConfigError for a name that is in use or a setting that is wrong, and the TaskError of a spout
        or bolt that cannot be opened. Source: Storm's `submitTopology`.
        """
        self._check_free(name)
        timer = SimulatedTimer() if self._simulated_time else None
        running = LocalTopology(name, conf, topology, timer, collect)
        running.start()
        self._running[name] = running
        return running

    def advance(self, seconds: float, increment: float = 1.0) -> None:
        """Let simulated time pass, and have everything that it leads to done after each increment.

        ConfigError for a cluster without simulated time. Source: Storm's `advanceClusterTime`.
        """
        if not self._simulated_time:
            raise ConfigError("time passes by itself here; make the cluster with simulated_time=True")
        left = seconds
        while left > 0:
            for running in self._running.values():
                if running.timer is not None:
                    running.timer.advance(min(increment, left))
                    running.wait()
            left -= increment


class DistributedCluster(_Cluster[DistributedTopology]):
    """Runs topologies in processes of this machine, one for each worker, with a transport between them.

    ::

        with DistributedCluster() as cluster:
            running = cluster.submit("words", {"topology.workers": 3}, topology, collect=["count"])
            running.finish().tuples("count")
    """

    def submit(
        self,
        name: str,
        conf: Mapping[str, Any],
        topology: Topology | str,
        collect: Sequence[str] = (),
    ) -> DistributedTopology:
        """Run a topology; conf: settings by Storm's keys, and the user's own, in what JSON has a form for.

        topology: the object, or `package.module:function` that returns it in each process, which looks for
        modules where this one does. collect: the components whose tuples finish() returns. Raises ConfigError
        for a name that is in use or a setting that is wrong, and LaunchError or ProcessFailedError for a
        process that does not start.
        """
        self._check_free(name)
        running = self._running[name] = DistributedTopology(name, conf, topology, collect)
        running.activate()
        return running


def cluster_of(conf: Mapping[str, Any]) -> LocalCluster | DistributedCluster:
    """Return what runs topologies with these settings, by `storm.cluster.mode`.

    Raises ConfigError for a setting of the launcher that is wrong. Source: Storm's `ConfigUtils.isLocalMode`.
    """
    settings = LaunchSettings.from_conf(conf)
    return DistributedCluster() if settings.mode is ClusterMode.DISTRIBUTED else LocalCluster()


def complete_topology(
    topology: Topology,
    sources: Mapping[str, Sequence[Sequence[Any]]],
    conf: Mapping[str, Any] | None = None,
    timeout: float = WAIT_SECONDS,
) -> Captured:
    """Run a topology until every given tuple is processed, and return everything that was emitted.

    sources: tuples for each spout, which are emitted in place of its own. Raises the TaskError by which the
    topology fails, and TimeoutError. Source: Storm's `Testing.completeTopology`.
    """
    with LocalCluster() as cluster:
        running = cluster.submit("complete-topology", conf or {}, with_sources(topology, sources))
        running.wait(timeout)
        return running.captured
