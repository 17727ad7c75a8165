"""The workers of a campaign, which are drained, killed and restarted, and the owners of their tasks."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from campaigns.journal import Journal
from helpers.restartable import THIS_HOST, Host, Restart, RestartableWorker
from helpers.topology import TOPOLOGY, as_json

from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import UnreachableError
from tuplewire.processes.worker_processes import Endpoint
from tuplewire.session.ledger import LedgerSnapshot
from tuplewire.wire import control_pb2
from tuplewire_service.command.status_report import ledger_of
from tuplewire_service.control.control_messages import assignment_to_wire
from tuplewire_service.testing import eventually
from tuplewire_service.worker.assignment import AssignedWorker, Assignment

logger = logging.getLogger(__name__)

_STATUS_SECONDS = 2.0
_SETTLED_SECONDS = 60.0


def is_clean(ledger: LedgerSnapshot) -> bool:
    """Return True if a ledger is balanced, and no message is pending or dropped."""
    return ledger.balanced and not ledger.pending and not sum(ledger.dropped.values())


class Cluster:
    """Workers of one topology, with their assignment, their routes, and the ledgers of drained workers."""

    def __init__(
        self,
        directory: Path,
        journal: Journal,
        flags: Sequence[str] = (),
        *,
        drain_seconds: float = 30.0,
        hosts: Mapping[str, Host] | None = None,
    ) -> None:
        self.workers: dict[str, RestartableWorker] = {}
        self.owners: dict[int, str] = {}
        self.version = 0
        self.route: Callable[[str, str], str] | None = None
        self.ledgers: list[tuple[str, int, LedgerSnapshot]] = []
        self._directory = directory
        self._journal = journal
        self._flags = flags
        self._drain_seconds = drain_seconds
        self._hosts = hosts or {}
        self._faults: list[str] = []
        self._holders: defaultdict[int, set[str]] = defaultdict(set)
        """The workers that may hold messages of a task, according to the journal."""
        self._publishing = threading.RLock()

    def add(self, *names: str) -> None:
        """Start new workers."""
        for name in names:
            worker = RestartableWorker(
                name,
                self._directory,
                self.file(name),
                [f"--listen-unix={self._directory / name}.sock", *self._flags],
                drain_seconds=self._drain_seconds,
                host=self._hosts.get(name, THIS_HOST),
            )
            worker.start()
            self.workers[name] = worker

    def remove(self, name: str, *, killed: bool = False) -> None:
        """Stop a worker permanently."""
        self.end(name, killed=killed)
        del self.workers[name]

    def end(self, name: str, *, killed: bool = False) -> None:
        """Drain a worker, or kill it."""
        worker = self.workers[name]
        if killed:
            worker.kill()
        else:
            try:
                self.ledgers.append((name, *worker.end()))
            except AssertionError as wrong:  # killed at its deadline, without a ledger
                self._faults.append(f"{name} was drained: {wrong}")
        self._journal.write("worker_ended", worker=name, killed=killed)

    def restart(self, name: str) -> Restart:
        """Drain a worker, start it again, and wait until it is ready."""
        restart = self.workers[name].restart()
        self.ledgers.append((name, restart.exit_code, restart.ledger))
        self._journal.write("worker_ended", worker=name, killed=False)
        return restart

    def end_all(self) -> None:
        """Drain every running worker."""
        for name, worker in self.workers.items():
            if worker.alive:
                self.end(name)

    def discard(self) -> None:
        """Kill every running worker."""
        for worker in self.workers.values():
            worker.discard()

    @property
    def endpoints(self) -> dict[str, Endpoint]:
        """The addresses of the workers. Only process ids change."""
        return {name: worker.endpoint for name, worker in self.workers.items()}

    def wait_ready(self) -> None:
        """Wait until every worker has its assignment and its connections."""
        for worker in self.workers.values():
            worker.wait_ready()

    def file(self, name: str) -> Path:
        """Return the file with the assignment of a worker."""
        return self._directory / f"{name}.assignment.json"

    def assign(self, owners: Mapping[int, str], order: Sequence[str] = ()) -> None:
        """Assign tasks to workers, and publish the assignment to the workers in this order."""
        with self._publishing:
            for task, worker in owners.items():
                if self.owners.get(task) != worker:
                    self._journal.write("owns", task=task, worker=worker)
                    self._holders[task].add(worker)
            self.owners = dict(owners)
            self.version += 1
            for name in order or self.workers:
                self._publish(name)

    def _publish(self, name: str) -> None:
        """Write the assignment of a worker, and push it. A worker that is unreachable reads it later."""
        assigned = tuple(self._assigned(far, name) for far in self.workers)
        assignment = Assignment(self.version, TOPOLOGY, assigned)
        temporary = self.file(name).with_suffix(".new")
        temporary.write_text(as_json(assignment), encoding="utf-8")
        temporary.replace(self.file(name))
        try:
            with ControlClient(self.workers[name].endpoint.unix_address, _STATUS_SECONDS) as control:
                control.update_assignment(assignment_to_wire(assignment))
        except UnreachableError as error:
            logger.info("not pushed: %s", error)

    def _assigned(self, far: str, near: str) -> AssignedWorker:
        """Return one worker with the address at which another worker must reach it."""
        endpoint = self.workers[far].endpoint
        tasks = tuple(sorted(task for task, owner in self.owners.items() if owner == far))
        if far == near or self.route is None:
            return AssignedWorker(far, endpoint.address, tasks, peer_address=endpoint.peer_address)
        if endpoint.peer_address:
            return AssignedWorker(far, endpoint.address, tasks, peer_address=self.route(near, far))
        return AssignedWorker(far, self.route(near, far), tasks)

    def move(self, task: int, worker: str, order: Sequence[str]) -> None:
        """Assign one task to another worker; do not wait for the move."""
        with self._publishing:
            if self.owners[task] != worker:
                self.assign({**self.owners, task: worker}, order)

    def settled(self) -> bool:
        """Return True, and record it, if every worker has the assignment and no task is moving."""
        version = self.version
        if not all(
            status is not None and status.assignment_version == version and not status.moving_task_count
            for status in self.statuses().values()
        ):
            return False
        with self._publishing:
            if self.version == version:
                for task, holders in self._holders.items():
                    for worker in holders - {self.owners.get(task)}:
                        self._journal.write("left", task=task, worker=worker)
                self._holders = defaultdict(set, {task: {owner} for task, owner in self.owners.items()})
        return True

    def await_settled(self) -> None:
        """Wait until no task is moving; AssertionError after a minute."""
        eventually(self.settled, _SETTLED_SECONDS, f"version {self.version} is current at every worker")

    def statuses(self) -> dict[str, control_pb2.GetStatusResponse | None]:
        """Return the status of each worker, None for a worker that does not answer."""
        found: dict[str, control_pb2.GetStatusResponse | None] = dict.fromkeys(self.workers)
        for name, endpoint in self.endpoints.items():
            with suppress(UnreachableError), ControlClient(endpoint.unix_address, _STATUS_SECONDS) as control:
                found[name] = control.status()
        return found

    def balances(self) -> dict[str, LedgerSnapshot | None]:
        """Return the ledger of each worker, None for a worker that does not answer."""
        return {
            name: None if status is None else ledger_of(status.ledger)
            for name, status in self.statuses().items()
        }

    def queued(self, tasks: Container[int]) -> int:
        """Return the number of messages in the queues of these tasks."""
        statuses = filter(None, self.statuses().values())
        return sum(each.queued_messages for status in statuses for each in status.tasks if each.task in tasks)

    def is_empty(self) -> bool:
        """Return True if no worker holds a message and no task is moving."""
        return all(
            each is not None and not each.ledger.pending and not each.moving_task_count
            for each in self.statuses().values()
        )

    @property
    def faults(self) -> list[str]:
        """Every failed drain, and every worker that exited with pending messages, as text."""
        return [
            *self._faults,
            *(
                f"{name} was drained, code {code}: {ledger}"
                for name, code, ledger in self.ledgers
                if code or not is_clean(ledger)
            ),
        ]
