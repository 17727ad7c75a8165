"""The workers of a chaos run: real processes that are killed, drained, stopped, and started again."""

from __future__ import annotations

import json
import logging
import os
import random
import re
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from campaigns.chaos.journal import Journal
from campaigns.chaos.layout import TASKS, TOPOLOGY, WORKERS

from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import UnreachableError
from tuplewire.processes.worker_processes import Endpoint, WorkerProcesses
from tuplewire.session.ledger import LedgerSnapshot
from tuplewire.wire import control_pb2
from tuplewire_service.command.status_report import ledger_of
from tuplewire_service.control.control_messages import assignment_to_wire
from tuplewire_service.worker.assignment import AssignedWorker, Assignment

logger = logging.getLogger(__name__)

_DRAIN_SECONDS = 30
_STATUS_SECONDS = 2.0
_POLL_SECONDS = 0.05
_DRAINED = re.compile(r'worker\.drained ledger="([^"]*)"')
_NOTHING_LEFT = re.compile(r"\+ dropped 0 \+ pending 0$")


@dataclass(frozen=True, slots=True)
class Host:
    """Where a process runs: the IP address there, what it is started in, and more flags for a worker."""

    address: str = "127.0.0.1"
    entered: Callable[[], AbstractContextManager[None]] = nullcontext
    flags: tuple[str, ...] = ()


THIS_HOST = Host()


class WorkerSlot:
    """One worker of the topology, through all its lives at one address."""

    def __init__(
        self, name: str, directory: Path, journal: Journal, transport: str, host: Host = THIS_HOST
    ) -> None:
        self.name = name
        self._host = host
        self._transport = transport
        self.lock = threading.RLock()
        """Held by whoever stops, kills or restarts it."""
        self._lives = 0
        self.assignment_file = directory / f"{name}.assignment.json"
        self._directory = directory
        self._journal = journal
        self._process: WorkerProcesses | None = None
        self._address = self._peer_address = f"{host.address}:0"
        self.endpoint = self.start()

    def start(self) -> Endpoint:
        """Start it, at the address that it had before; wait until it is bound."""
        self._lives += 1
        directory = self._directory / f"{self.name}.{self._lives}"
        directory.mkdir()
        workers = WorkerProcesses(
            1,
            TOPOLOGY,
            directory=directory,
            flags=[
                f"--worker-id={self.name}",
                f"--listen={self._address}",
                f"--transport={self._transport}",
                *([] if self._transport == "grpc" else [f"--listen-peers={self._peer_address}"]),
                f"--listen-unix={self._directory / self.name}.sock",
                f"--assignment-file={self.assignment_file}",
                *self._host.flags,
            ],
            drain_seconds=_DRAIN_SECONDS,
        )
        with self._host.entered():
            workers.start()
        self._process = workers
        (self.endpoint,) = workers.endpoints
        self._address = self.endpoint.address
        self._peer_address = self.endpoint.peer_address
        return self.endpoint

    @property
    def alive(self) -> bool:
        """Whether it was started and not ended since."""
        return self._process is not None

    def signal(self, number: signal.Signals) -> None:
        """Send its process a signal."""
        os.kill(self.endpoint.process_id, number)

    def end(self, *, killed: bool = False) -> str:
        """Kill it, or let it drain; say what was wrong with the drain, if anything."""
        assert self._process is not None
        if killed:
            self.signal(signal.SIGKILL)
        (code,) = self._process.stop()
        log = self._process.log_of(0)
        self._process = None
        self._journal.write("worker_ended", worker=self.name, killed=killed)
        if killed:
            return ""
        if code:
            return f"ended with code {code}; see {log}"
        (ledger,) = _DRAINED.findall(log.read_text(encoding="utf-8"))
        return "" if _NOTHING_LEFT.search(ledger) else f"left something behind: {ledger}; see {log}"


class Cluster:
    """All workers, and the assignment that they are told. hosts: of the workers that are not on this one."""

    def __init__(
        self, directory: Path, journal: Journal, transport: str, hosts: Mapping[str, Host] | None = None
    ) -> None:
        self.slots: dict[str, WorkerSlot] = {}
        self._journal = journal
        self._version = 0
        self._owners = {task: WORKERS[index % len(WORKERS)] for index, task in enumerate(TASKS)}
        self._publishing = threading.Lock()
        for task, worker in self._owners.items():
            journal.write("owns", task=task, worker=worker)
        try:
            for name in WORKERS:
                host = (hosts or {}).get(name, THIS_HOST)
                self.slots[name] = WorkerSlot(name, directory, journal, transport, host)
        except BaseException:
            self.stop()
            raise

    @property
    def endpoints(self) -> dict[str, Endpoint]:
        """Where the workers are."""
        return {name: slot.endpoint for name, slot in self.slots.items()}

    def stop(self) -> list[tuple[str, str]]:
        """Drain every worker that lives; return what is said of each, see WorkerSlot.end."""
        return [(name, slot.end()) for name, slot in self.slots.items() if slot.alive]

    def publish(self, address: Callable[[str, str], str], order: list[str]) -> None:
        """Put the next version of the assignment in force, at one worker after the other.

        address: where one worker reaches another. A worker that cannot be reached reads it from its file.
        """
        self._version += 1
        for name in order:
            slot = self.slots[name]
            assignment = Assignment(
                self._version,
                TOPOLOGY,
                tuple(self._assigned(far, name, address) for far in WORKERS),
            )
            file = slot.assignment_file
            temporary = file.with_suffix(".new")
            temporary.write_text(json.dumps(assignment.to_json()))
            temporary.replace(file)
            try:
                with ControlClient(slot.endpoint.unix_address, _STATUS_SECONDS) as control:
                    control.update_assignment(assignment_to_wire(assignment))
            except UnreachableError as error:
                logger.info("not pushed: %s", error)

    def _assigned(self, far: str, near: str, address: Callable[[str, str], str]) -> AssignedWorker:
        """Return a worker as one that reaches it over a way of its own is told of it."""
        endpoint = self.slots[far].endpoint
        tasks = tuple(task for task, owner in self._owners.items() if owner == far)
        if far == near:
            return AssignedWorker(far, endpoint.address, tasks, peer_address=endpoint.peer_address)
        if endpoint.peer_address:
            return AssignedWorker(far, endpoint.address, tasks, peer_address=address(near, far))
        return AssignedWorker(far, address(near, far), tasks)

    def move(
        self,
        task: int,
        ways: Sequence[str],
        address: Callable[[str, str], str],
        chance: random.Random,
        stop: threading.Event,
    ) -> None:
        """Move a task to one worker right after the other, and wait until every move is over."""
        for to in ways:
            with self._publishing:
                if self._owners[task] != to:
                    self._journal.write("owns", task=task, worker=to)
                    self._owners[task] = to
                    self.publish(address, chance.sample(WORKERS, len(WORKERS)))
        while not self._settled() and not stop.wait(_POLL_SECONDS):
            pass

    def _settled(self) -> bool:
        """Whether every worker knows the assignment and no task is moving; notes it if so."""
        version = self._version
        if not all(
            status is not None and status.assignment_version == version and not status.moving_tasks
            for status in self.statuses().values()
        ):
            return False
        with self._publishing:
            if self._version == version:
                for task, owner in self._owners.items():
                    for worker in WORKERS:
                        if worker != owner:
                            self._journal.write("left", task=task, worker=worker)
        return True

    def statuses(self) -> dict[str, control_pb2.GetStatusResponse | None]:
        """Return the status of each worker, None where it does not answer."""
        return {name: self._status(slot) for name, slot in self.slots.items()}

    @staticmethod
    def _status(slot: WorkerSlot) -> control_pb2.GetStatusResponse | None:
        try:
            with ControlClient(slot.endpoint.unix_address, _STATUS_SECONDS) as control:
                return control.status()
        except UnreachableError:
            return None

    def ledgers(self) -> dict[str, LedgerSnapshot | None]:
        """Return the balance of each worker, None where it does not answer."""
        return {
            name: None if status is None else ledger_of(status.ledger)
            for name, status in self.statuses().items()
        }

    def empty(self, deadline: float) -> bool:
        """Wait until no worker holds a message and no task is moving; False at the deadline (monotonic)."""
        while time.monotonic() < deadline:
            statuses = self.statuses().values()
            if all(
                each is not None and not each.ledger.pending and not each.moving_tasks for each in statuses
            ):
                return True
            time.sleep(_POLL_SECONDS)
        return False
