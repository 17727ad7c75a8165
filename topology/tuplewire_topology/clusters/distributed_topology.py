"""A topology with one process on this machine for each worker. Source: Storm's distributed mode.

Used by cluster.py. Owns the processes and the assignment. Not thread-safe. Exceptions: status() and
heartbeats(). Design: docs/design/topologies.md (a process that runs executors is a worker).
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tuplewire.errors import ConfigError, TuplewireError
from tuplewire.processes.child import Command, make_private_directory
from tuplewire.processes.worker_processes import worker_command
from tuplewire.session.ledger import LedgerSnapshot
from tuplewire.settings.addresses import join_host_port
from tuplewire.wire import control_pb2
from tuplewire_service.process.program import read_host_and_credentials
from tuplewire_topology.authoring.description import Topology, schedule_evenly, with_ackers
from tuplewire_topology.authoring.topology_settings import TopologySettings
from tuplewire_topology.clusters.capture import CapturedTuples
from tuplewire_topology.clusters.launching import (
    PICKLE_SUFFIX,
    LaunchSettings,
    create_log_directory,
    create_private_directory,
    load_topology,
    save_topology,
    write_private,
)
from tuplewire_topology.clusters.running_topology import (
    DEFAULT_CLOSE_SECONDS,
    WAIT_SECONDS,
    RunningTopology,
    TopologyStatus,
)
from tuplewire_topology.clusters.topology_program import COLLECT_KEY
from tuplewire_topology.clusters.worker_process import WorkerProcess
from tuplewire_topology.coordination.coordinator import Coordinator, Order
from tuplewire_topology.running.heartbeat import ExecutorHeartbeat
from tuplewire_topology.running.statistics import ProcessReport


class DistributedTopology(RunningTopology):
    """A topology that runs in processes. Created by DistributedCluster.submit.

    Attributes:
        captured: After finish(), the tuples of the components in `collect`.
        exit_codes: After close(), the exit code of each process.
        log_dir: The directory of the workers' logs, see log_path().
    """

    def __init__(
        self, name: str, conf: Mapping[str, Any], topology: Topology | str, collect: Sequence[str]
    ) -> None:
        super().__init__(name, conf, CapturedTuples())
        self.exit_codes: list[int] = []
        self._settings = LaunchSettings.from_conf(conf)
        self._assignment = control_pb2.Assignment(topology=name, inactive=True)
        self._workers: list[WorkerProcess] = []
        self._temp_dir = make_private_directory()
        try:
            self._launch(dict(conf), topology, collect)
        except BaseException:
            self.close(0.0)
            raise

    def _launch(self, conf: dict[str, Any], topology: Topology | str, collect: Sequence[str]) -> None:
        user = self._settings.user if self._settings.uses_other_user else None
        directory = create_log_directory(Path(self._temp_dir), user)
        self.log_dir = create_log_directory(Path(self._settings.log_dir or directory), user)
        if isinstance(topology, str):
            reference, topology = topology, load_topology(topology)
        else:
            reference = save_topology(topology, directory / f"topology{PICKLE_SUFFIX}", user)
        for component in collect:
            topology.component(component)
        settings = TopologySettings.from_conf(conf)
        self.topology = with_ackers(topology, settings.n_ackers)
        tasks_by_worker = schedule_evenly(self.topology, settings.workers)
        write_private(directory / "conf.json", _as_json({**conf, COLLECT_KEY: list(collect)}), user)
        run_directory = create_private_directory(directory / "run", user)
        host, credentials = read_host_and_credentials(conf)
        for index in range(len(tasks_by_worker)):
            port = self._settings.port_of(index)
            worker_id = f"{self.name}-worker-{index}"
            command = Command(
                name=worker_id,
                arguments=worker_command(
                    worker_id,
                    self.name,
                    self._settings.stop_timeout_seconds,
                    f"--program={reference}",
                    f"--program-conf-file={directory / 'conf.json'}",
                    f"--state-file={run_directory / f'{worker_id}.state'}",
                    options=self._settings.interpreter_options(port, worker_id, self.name),
                ),
                log_path=self.log_dir / f"{worker_id}.log",
                environment=self._settings.environment,
                user=user,
            )
            worker = WorkerProcess(
                command,
                self._settings,
                listen=join_host_port(host, port),
                address_file=run_directory / f"{worker_id}.json",
                credentials=credentials,
            )
            self._workers.append(worker)
        for worker in self._workers:  # after all of them were started, so they start in parallel
            worker.wait_for_bound()
        self._assignment.version = 1
        for worker, tasks in zip(self._workers, tasks_by_worker, strict=True):
            self._assignment.workers.append(worker.endpoint.to_assigned_worker(tasks))
        # In parallel, because each call waits until all tasks are open.
        with ThreadPoolExecutor(len(self._workers)) as pool:
            list(pool.map(lambda worker: worker.open_tasks(self._assignment), self._workers))

    @contextlib.contextmanager
    def _edit_assignment(self) -> Iterator[control_pb2.Assignment]:
        """Yield a copy of the newest assignment, which may be an operator's; then send it to every worker."""
        assignments = filter(None, (worker.assignment() for worker in self._workers))
        newest = max([self._assignment, *assignments], key=lambda each: each.version)
        self._assignment = control_pb2.Assignment()
        self._assignment.CopyFrom(newest)
        self._assignment.version += 1
        yield self._assignment
        for worker in self._workers:
            worker.update_assignment(self._assignment)

    def log_path(self, index: int) -> Path:
        """Return the file with the output of a worker."""
        return self.log_dir / f"{self.name}-worker-{index}.log"

    @property
    def addresses(self) -> list[str]:
        """The workers' addresses, for `tuplewire status` or for programs outside the topology."""
        return [worker.endpoint.address for worker in self._workers]

    @property
    def metrics_urls(self) -> list[str]:
        """The URLs of the workers' metrics."""
        return [worker.endpoint.metrics_url for worker in self._workers]

    @property
    def restarts(self) -> int:
        """The number of process restarts."""
        return sum(worker.start_count - 1 for worker in self._workers)

    def _set_active(self, *, active: bool) -> None:
        with self._edit_assignment() as assignment:
            assignment.inactive = not active

    def _apply_order(self, coordinator: Coordinator, rank: int, order: Order) -> ProcessReport | None:
        if self.restarts:
            coordinator.use_inexact_counts()
        return self._workers[rank].apply_order(order)

    def finish(self, timeout: float = WAIT_SECONDS) -> CapturedTuples:
        """See RunningTopology. Only the tuples of `collect` are recorded."""
        super().finish(timeout)
        for worker in self._workers:
            worker.move_captured(self.captured)
        return self.captured

    def worker_index(self, task: int) -> int:
        self.topology.component_of(task)
        return next(rank for rank, each in enumerate(self._assignment.workers) if task in each.tasks)

    def move_task(self, task: int, worker_index: int, timeout: float = WAIT_SECONDS) -> None:
        """Move the executor of a task to another worker; see LocalTopology.move_task.

        Raises errors of wait(): the task may have moved. After a TopologyError, nothing has moved.
        """
        tasks = self._executor_tasks(task)
        self._check_worker(worker_index)
        active = not self._assignment.inactive
        self.deactivate()
        try:
            self.wait(timeout)  # no tuple is in flight afterwards, so none arrives at the old worker
            with self._edit_assignment() as assignment:
                for rank, each in enumerate(assignment.workers):
                    others = [other for other in each.tasks if other not in tasks]
                    each.tasks[:] = [*others, *tasks] if rank == worker_index else others
            self.wait(timeout)  # until the tasks are open
        finally:
            self._set_active(active=active)

    def status(self) -> TopologyStatus:
        executors = [each for worker in self._workers for each in worker.statistics()[0]]
        return TopologyStatus(self.name, "INACTIVE" if self._assignment.inactive else "ACTIVE", executors)

    def heartbeats(self) -> list[ExecutorHeartbeat]:
        """Return the activity of every executor at its worker's last heartbeat."""
        return [each for worker in self._workers for each in worker.statistics()[1]]

    def ledgers(self) -> dict[str, LedgerSnapshot]:
        """Return the ledger of each worker, in messages."""
        return {worker.name: worker.ledger() for worker in self._workers}

    def close(self, timeout: float = DEFAULT_CLOSE_SECONDS) -> None:
        """Deactivate the topology, wait up to `timeout` seconds until it has finished, and end all processes.

        Each process drains before it closes its connections. A failed topology ends immediately, and a
        process that does not end is killed. Idempotent.
        """
        workers, seconds = self._workers, 0.0
        if workers and timeout:
            deadline = time.monotonic() + timeout
            with contextlib.suppress(TuplewireError):  # the processes end in any case
                for worker in workers:
                    worker.raise_if_failed()
                self.deactivate()
                self.wait(timeout)
                seconds = max(0.0, deadline - time.monotonic())
        self._workers, self._closed = [], True
        if workers:
            with ThreadPoolExecutor(len(workers)) as pool:
                self.exit_codes = list(pool.map(lambda worker: worker.stop(seconds), workers))
        shutil.rmtree(self._temp_dir, ignore_errors=True)


def _as_json(conf: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(conf, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the settings cannot be written for other processes: {error}") from error
