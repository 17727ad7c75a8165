"""A topology with one process on this machine for each worker. Source: Storm's distributed mode.

Used by cluster.py. Owns the processes and the assignment. Not thread-safe, except for status() and beats().
Design: docs/design/topologies.md (a process that runs executors is a worker).
"""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tuplewire.errors import ConfigError, TopologyError, TuplewireError
from tuplewire.processes.child import Command, directory_for, private_directory, write_private
from tuplewire.processes.worker_processes import worker_words
from tuplewire.session.ledger import LedgerSnapshot
from tuplewire.settings.addresses import join_host_port
from tuplewire_service.process.program import listen_host
from tuplewire_topology.acking.acker_tasks import with_ackers
from tuplewire_topology.authoring.description import Topology, shares_of
from tuplewire_topology.authoring.topology_settings import TopologySettings
from tuplewire_topology.clusters.capture import Captured
from tuplewire_topology.clusters.launch_settings import LaunchSettings
from tuplewire_topology.clusters.local_topology import KILL_SECONDS, WAIT_SECONDS, TopologyStatus
from tuplewire_topology.clusters.reference import SUFFIX, load_topology, save_topology
from tuplewire_topology.clusters.worker_process import WorkerProcess
from tuplewire_topology.coordination.termination import Termination
from tuplewire_topology.running.heartbeat import ExecutorBeat

_FIRST_POLL_SECONDS = 0.005
_POLL_SECONDS = 0.1
_QUIET_SECONDS = 1.0
"""The time between polls after a restart. Two equal reports at rest then end the topology."""


class DistributedTopology:
    """A topology that runs in processes. Created by DistributedCluster.submit.

    `captured` has the tuples of the collected components after finish().
    """

    def __init__(
        self, name: str, conf: Mapping[str, Any], topology: Topology | str, collect: Sequence[str]
    ) -> None:
        self.name = name
        self.captured = Captured()
        self.exit_codes: list[int] = []
        self._active = self._failed = False
        self._conf = conf
        self._settings = LaunchSettings.from_conf(conf)
        self._host = listen_host(conf)
        self._version = 0
        self._workers: list[WorkerProcess] = []
        self._temporary = private_directory()
        user = self._settings.run_as
        directory = directory_for(Path(self._temporary), user)
        self.log_dir = directory_for(Path(self._settings.log_dir or directory), user)
        try:
            self._launch(dict(conf), topology, collect, directory)
        except BaseException:
            self.close(0.0)
            raise

    def _launch(
        self, conf: dict[str, Any], topology: Topology | str, collect: Sequence[str], directory: Path
    ) -> None:
        reference = topology
        if isinstance(reference, Topology):
            reference = save_topology(reference, directory / f"topology{SUFFIX}", self._settings.run_as)
        if isinstance(topology, str):
            topology = load_topology(topology)
        for component in collect:
            topology.component(component)
        running = TopologySettings.from_conf(conf)
        self.topology = with_ackers(topology, running.ackers)
        portions = shares_of(self.topology, running.workers)
        write_private(directory / "conf.json", _as_json(conf), self._settings.run_as)
        for index in range(len(portions)):
            port = self._settings.port_of(index)
            worker_id = f"{self.name}-worker-{index}"
            state = [] if self._settings.run_as else [f"--state-file={directory / f'{worker_id}.state'}"]
            words = worker_words(
                worker_id,
                self.name,
                self._settings.stop_seconds,
                f"--program={reference}",
                f"--program-conf={directory / 'conf.json'}",
                *state,
                *(f"--collect={component}" for component in collect),
                options=self._settings.interpreter_options(
                    port=port, worker_id=worker_id, topology_id=self.name
                ),
            )
            command = Command(
                name=worker_id,
                words=words,
                log=self.log_dir / f"{worker_id}.log",
                environment=self._settings.environment,
                user=self._settings.run_as,
            )
            self._workers.append(WorkerProcess(command, self._settings, join_host_port(self._host, port)))
        for worker in self._workers:  # after all of them were started, so they start in parallel
            worker.await_bound()
        self._tasks = [list(share) for share in portions]
        self._assign()

    def _assign(self) -> None:
        """Send the assignment to every worker, and wait until each runs its tasks."""
        self._version += 1
        workers = [
            {
                "worker_id": worker.name,
                "address": worker.address,
                "peer_address": worker.peer_address,
                "tasks": tasks,
            }
            for worker, tasks in zip(self._workers, self._tasks, strict=True)
        ]
        assignment = {"version": self._version, "topology": self.name, "workers": workers}
        with ThreadPoolExecutor(len(self._workers)) as pool:  # each call waits until all tasks are open
            list(pool.map(lambda worker: worker.follow(assignment), self._workers))

    def log_of(self, index: int) -> Path:
        """Return the file with the output of a worker."""
        return self.log_dir / f"{self.name}-worker-{index}.log"

    @property
    def addresses(self) -> list[str]:
        """The workers' addresses, for `tuplewire status` or for programs outside the topology."""
        return [worker.address for worker in self._workers]

    @property
    def metrics_urls(self) -> list[str]:
        """The URLs of the workers' metrics."""
        return [worker.metrics_url for worker in self._workers]

    @property
    def restarts(self) -> int:
        """The number of process restarts."""
        return sum(worker.starts - 1 for worker in self._workers)

    def activate(self) -> None:
        """Start to request tuples from the spouts. Source: Storm's `activate`."""
        self._switch(active=True)

    def deactivate(self) -> None:
        """Stop requesting tuples; tuples in flight are still processed. Source: Storm's `deactivate`."""
        self._switch(active=False)

    def _switch(self, *, active: bool) -> None:
        self._active = active
        for worker in self._workers:
            worker.switch(active=active)

    def wait(self, timeout: float = WAIT_SECONDS) -> None:
        """Wait until the topology has finished: all spouts exhausted or inactive, and no tuple in flight.

        Raises ProcessFailedError, with the traceback of the user's code, or LaunchError, if a process fails
        and is not restarted, and TimeoutError after `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        pause = _FIRST_POLL_SECONDS
        termination = self._termination()
        while True:
            wave = termination.wave
            with self._noting_failure():
                for worker in self._workers:
                    report = worker.report(wave)
                    if report is not None:
                        termination.take(worker.name, wave, report)
            # A restart loses tuples and counts, so sums no longer match. The topology has then finished when
            # all processes were at rest, with the same counts, for _QUIET_SECONDS.
            if self.restarts and termination.exact:
                termination = self._termination()
            if termination.over:
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"topology {self.name!r} was not over after {timeout} s")
            pause = min(2 * pause, _POLL_SECONDS) if termination.exact else _QUIET_SECONDS
            threading.Event().wait(pause)

    @contextlib.contextmanager
    def _noting_failure(self) -> Iterator[None]:
        try:
            yield
        except TuplewireError:
            self._failed = True
            raise

    def _termination(self) -> Termination:
        return Termination((worker.name for worker in self._workers), exact=not self.restarts)

    def finish(self, timeout: float = WAIT_SECONDS) -> Captured:
        """Wait until the topology has finished, send the final ticks, wait, and return the collected tuples.

        A bolt that aggregates can emit its result on the final tick. Bolts get this tick after the results of
        earlier bolts; the bolts of a cycle get it together. Raises the errors of wait(), and
        ProcessFailedError if a collected tuple has a value that no message can carry.
        """
        self.wait(timeout)
        for level in self.topology.tick_levels(self._conf):
            for worker in self._workers:
                worker.tell("tick", *level)
            self.wait(timeout)
        with self._noting_failure():
            for worker in self._workers:
                worker.collect(self.captured)
        return self.captured

    def worker_of(self, task: int) -> int:
        """Return the number, from 0, of the worker that owns a task; TopologyError for an unknown task."""
        self.topology.component_of(task)
        return next(number for number, tasks in enumerate(self._tasks) if task in tasks)

    def move_task(self, task: int, worker: int, timeout: float = WAIT_SECONDS) -> None:
        """Move the executor of a task to another worker; see LocalTopology.move_task.

        Nothing has moved if this raises TopologyError for an unknown task or worker, or an error of wait().
        """
        source = self._tasks[self.worker_of(task)]
        if not 0 <= worker < len(self._tasks):
            raise TopologyError(
                f"there is no worker {worker}: topology {self.name!r} has {len(self._tasks)}, from 0"
            )
        executors = self.topology.executors_of(self.topology.component_of(task).id)
        tasks = next(each for each in executors if task in each)
        active = self._active
        self.deactivate()
        try:
            self.wait(timeout)
            source[:] = [each for each in source if each not in tasks]
            self._tasks[worker] += tasks  # no tuple is in flight, so none arrives at the old worker
            self._assign()
        finally:
            self._switch(active=active)

    def status(self) -> TopologyStatus:
        """Return a snapshot."""
        state = "ACTIVE" if self._active else "INACTIVE"
        executors = [each for worker in self._workers for each in worker.statistics()]
        return TopologyStatus(self.name, state, executors)

    def beats(self) -> list[ExecutorBeat]:
        """Return the activity of every executor at its worker's last heartbeat."""
        return [each for worker in self._workers for each in worker.beats()]

    def ledgers(self) -> dict[str, LedgerSnapshot]:
        """Return the ledger of each worker, in messages."""
        return {worker.name: worker.ledger() for worker in self._workers}

    def close(self, timeout: float = KILL_SECONDS) -> None:
        """Deactivate the topology, wait up to `timeout` seconds until it has finished, and end all processes.

        Each process drains before it closes its connections. A failed topology ends immediately, and a
        process that does not end is killed. Idempotent.
        """
        deadline = time.monotonic() + timeout
        if timeout and not self._failed:
            with contextlib.suppress(TuplewireError, TimeoutError):  # the processes end in any case
                self.deactivate()
                self.wait(timeout)
        workers, self._workers = self._workers, []
        if workers:
            seconds = 0.0 if self._failed else max(0.0, deadline - time.monotonic())
            with ThreadPoolExecutor(len(workers)) as pool:
                self.exit_codes = list(pool.map(lambda worker: worker.stop(seconds), workers))
        shutil.rmtree(self._temporary, ignore_errors=True)


def _as_json(conf: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(conf, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the settings cannot be written for other processes: {error}") from error
