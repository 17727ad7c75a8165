"""Clusters run topologies, with all workers in this process, or with one process per worker.

Used by tests, notebooks and `tuplewire run`. Owns the running topologies, and ends them. Not thread-safe.
Design: docs/design/topologies.md.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Self, TypeVar

from tuplewire.errors import ConfigError, TopologyError
from tuplewire_topology.authoring.description import Topology
from tuplewire_topology.clusters.capture import CapturedTuples, with_sources
from tuplewire_topology.clusters.distributed_topology import DistributedTopology
from tuplewire_topology.clusters.launching import ClusterMode, LaunchSettings
from tuplewire_topology.clusters.local_topology import LocalTopology
from tuplewire_topology.clusters.running_topology import DEFAULT_CLOSE_SECONDS, WAIT_SECONDS, TopologyStatus
from tuplewire_topology.running.timer import SimulatedTimer

_Running = TypeVar("_Running", bound=LocalTopology | DistributedTopology)


class _Cluster(Generic[_Running]):
    """The running topologies by name. Leaving the context ends them."""

    def __init__(self) -> None:
        self._running: dict[str, _Running] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def _submit(self, name: str, create: Callable[[], _Running]) -> _Running:
        if name in self._running:
            raise ConfigError(f"a topology named {name!r} runs already; kill it, or choose another name")
        running = self._running[name] = create()
        running.activate()  # after the registration, so that shutdown() ends it if this fails
        return running

    def get_topology(self, name: str) -> _Running:
        """Return a running topology; TopologyError if there is none with this name."""
        if name not in self._running:
            known = ", ".join(map(repr, self._running)) or "none"
            raise TopologyError(f"no topology {name!r} runs here; there are {known}")
        return self._running[name]

    def wait(self, name: str, timeout: float = WAIT_SECONDS) -> None:
        """Wait until a topology has finished; see `wait` of its class."""
        self.get_topology(name).wait(timeout)

    def kill(self, name: str, timeout: float = DEFAULT_CLOSE_SECONDS) -> None:
        """End a topology; see `close` of its class. Source: Storm's `killTopology`."""
        running = self.get_topology(name)
        del self._running[name]
        running.close(timeout)

    def status(self) -> dict[str, TopologyStatus]:
        """Return a snapshot of every topology. Source: Storm's `getClusterInfo`."""
        return {name: running.status() for name, running in self._running.items()}

    def shutdown(self) -> None:
        """Kill every topology. Idempotent. Source: Storm's `shutdown`."""
        with contextlib.ExitStack() as stack:  # an error of one does not leave the others running
            for name in list(self._running):
                stack.callback(self.kill, name)


class LocalCluster(_Cluster[LocalTopology]):
    """Runs topologies in this process, with the same executors, queues and transports as elsewhere.

    ::

        with LocalCluster() as cluster:
            running = cluster.submit("words", {}, topology)
            running.wait()
            running.captured.tuples("count")

    Several workers use `storm.messaging.transport`, by default "local". Source: Storm's `LocalCluster`.

    Args:
        simulated_time: The time for ticks passes by advance() only.
    """

    def __init__(self, *, simulated_time: bool = False) -> None:
        super().__init__()
        self._timer = SimulatedTimer() if simulated_time else None

    def submit(
        self, name: str, conf: Mapping[str, Any], topology: Topology, collect: Sequence[str] | None = None
    ) -> LocalTopology:
        """Run a topology. Source: Storm's `submitTopology`.

        Args:
            conf: Settings by Storm's keys, and the user's own.
            collect: Record only tuples emitted by these components; by default all, and received tuples.

        Raises:
            ConfigError: The name is used, or a setting is invalid.
            TaskError: A task cannot be opened.
        """
        return self._submit(name, lambda: LocalTopology(name, conf, topology, self._timer, collect))

    def advance(self, seconds: float, increment: float = 1.0) -> None:
        """Advance the simulated time, and wait after each `increment` seconds until all have finished.

        Source: Storm's `advanceClusterTime`.

        Raises:
            ConfigError: Without simulated time, or with an `increment` of 0. Also the errors of wait().
        """
        if self._timer is None:
            raise ConfigError("this cluster uses the system clock; create it with simulated_time=True")
        if not increment > 0:
            raise ConfigError(f"increment is a number of seconds above 0, not {increment}")
        while seconds > 0:
            self._timer.advance(min(increment, seconds))
            for running in self._running.values():
                running.wait()
            seconds -= increment


class DistributedCluster(_Cluster[DistributedTopology]):
    """Runs topologies in processes of this machine, one for each worker, with a transport between them.

    ::

        with DistributedCluster() as cluster:
            running = cluster.submit("words", {"topology.workers": 3}, topology, collect=["count"])
            running.finish().tuples("count")
    """

    def submit(
        self, name: str, conf: Mapping[str, Any], topology: Topology | str, collect: Sequence[str] = ()
    ) -> DistributedTopology:
        """Run a topology.

        Args:
            conf: Settings by Storm's keys, and the user's own, as JSON values.
            topology: The object, or a `package.module:function` that returns it in each process. The
                processes search modules on this process's path.
            collect: Record tuples emitted by these components, for finish().

        Raises:
            ConfigError: The name is used, or a setting is invalid.
            LaunchError: A process has not started.
            ProcessFailedError: A task cannot be opened.
        """
        return self._submit(name, lambda: DistributedTopology(name, conf, topology, collect))


def cluster_of(conf: Mapping[str, Any]) -> LocalCluster | DistributedCluster:
    """Return a cluster of the kind `storm.cluster.mode`. Raises ConfigError. Source: `isLocalMode`."""
    mode = LaunchSettings.from_conf(conf).mode
    return DistributedCluster() if mode is ClusterMode.DISTRIBUTED else LocalCluster()


def complete_topology(
    topology: Topology,
    sources: Mapping[str, Sequence[Sequence[Any]]],
    *,
    conf: Mapping[str, Any] | None = None,
    timeout: float = WAIT_SECONDS,
) -> CapturedTuples:
    """Run a topology until all tuples of `sources` are processed, and return all emitted tuples.

    Source: Storm's `Testing.completeTopology`.

    Args:
        sources: The tuples of the spouts with these names, which are replaced.
        timeout: The maximum wait in seconds.

    Raises:
        WaitTimeoutError: The timeout has passed.
        TaskError: The topology has failed.
    """
    with LocalCluster() as cluster:
        running = cluster.submit("complete-topology", conf or {}, with_sources(topology, sources))
        running.wait(timeout)
        return running.captured
