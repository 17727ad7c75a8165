"""The interface between a worker and the program in its process, such as the executors of a topology.

A worker process loads its program through the entry point group `tuplewire.programs`. An embedded worker
gives its Host to the code that embeds it. Used by process/ and by clusters of topologies. Owns no state.
Thread-safe. Design: docs/design/topologies.md.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import asdict, replace
from importlib.metadata import entry_points
from typing import Any, cast

from tuplewire.client import Client
from tuplewire.connection.loop import messaging_thread
from tuplewire.errors import ConfigError
from tuplewire.identity.credentials import Credentials
from tuplewire.session.ledger import LedgerSnapshot
from tuplewire.settings.addresses import split_host_port
from tuplewire.settings.config import Overflow
from tuplewire.settings.settings import settings_of
from tuplewire.values.group import TaskGroup
from tuplewire.wire import control_pb2 as pb
from tuplewire_service.config.config_sources import settings_in
from tuplewire_service.messaging.factory import TRANSPORT_KEY
from tuplewire_service.security.certificates import Certificates
from tuplewire_service.worker.assignment import Assignment
from tuplewire_service.worker.worker import AttachedProgram, Worker

PROGRAM_ENTRY_POINTS = "tuplewire.programs"


class Program(ABC):
    """A program in a worker's process, with the properties of AttachedProgram. Thread-safe."""

    @abstractmethod
    def start(self, address: str) -> None:
        """Start, after the worker has bound its address."""

    @abstractmethod
    def call(self, request: bytes) -> bytes:
        """Answer a request of CallProgram. It may block. A RefusedError or MalformedError is sent back."""

    @abstractmethod
    def stop_input(self) -> None:
        """Produce no new work, before the drain. Work in progress continues."""

    @abstractmethod
    def add_to(self, status: pb.GetStatusResponse) -> None:
        """Add its state to the worker's status."""

    @abstractmethod
    def metrics(self) -> list[pb.MetricFamily]:
        """Return its metrics."""

    @abstractmethod
    def close(self, timeout: float) -> bool:
        """End, after the drain; return False if it did not end within `timeout` seconds, or lost work."""


def load_program(handle: Host, name: str, conf: Mapping[str, object], state_file: str | None) -> Program:
    """Create the installed program. Raises ConfigError if none is installed, or its settings are invalid.

    `name` is the setting `program`. `conf` are the topology's settings. `state_file` stores its heartbeats.
    """
    for point in entry_points(group=PROGRAM_ENTRY_POINTS):  # only the first one is used
        return cast("Program", point.load()(handle, name, conf, state_file))
    raise ConfigError(f"no program is installed that could run {name!r}; install tuplewire again")


def read_host_and_credentials(conf: Mapping[str, Any]) -> tuple[str, Credentials]:
    """Return the host that worker processes listen on, and the credentials to control them.

    Raises ConfigError for an invalid setting of a topology, and for a transport within one process.
    """
    if conf.get(TRANSPORT_KEY) == "local":
        raise ConfigError(
            f"{TRANSPORT_KEY} 'local' connects workers of one process only; use another one, such as 'grpc'"
        )
    settings = settings_in(conf)
    host, _ = split_host_port(settings.get("listen", "127.0.0.1:0"))
    found = Credentials(**{name: settings[name] for name in settings_of(Credentials) if name in settings})
    if found.tls_ca is not None and not found.tls_worker_names:  # by default, their own names, as in workers
        found = replace(found, tls_worker_names=Certificates(found).get().names)
    return host, found


class Host:
    """The worker, for the program in its process. Thread-safe."""

    def __init__(self, worker: Worker, stop_with_error: Callable[[float], None]) -> None:
        """Wrap a worker. `stop_with_error` ends the process, after a drain of at most these seconds."""
        self.worker_id = worker.settings.worker_id
        self.topology = worker.settings.topology
        self.stop_with_error = stop_with_error
        self._worker = worker
        self._loop = messaging_thread()

    def attach(
        self,
        program: AttachedProgram,
        tasks: Collection[int],
        get_outbound_tasks: Callable[[Collection[int]], AbstractSet[int]] | None = None,
    ) -> None:
        """Attach the program: readiness and drain depend on it. Only it receives messages to its `tasks`.

        `get_outbound_tasks` returns the tasks to which it sends, from those that run here. The worker
        connects to their owners immediately, and to others with the first message. None: all tasks.
        """

        def attach() -> None:
            self._worker.program = program
            self._worker.router.consumers.program_tasks = frozenset(tasks)
            self._worker.router.table.get_outbound_tasks = get_outbound_tasks

        self._loop.call(attach)

    def create_client(self, n_tasks: int, prefetch_messages: int) -> Client:
        """Return a new client of the worker, through memory.

        It waits for free space of each task separately, so a stopped task does not block the others. Its
        memory is bounded by the receive queues of `n_tasks` tasks.
        """
        settings = self._worker.settings
        session = replace(
            settings.session,
            overflow=Overflow.BLOCK,
            max_pending_messages=sys.maxsize,
            max_pending_task_messages=settings.receive_queue_messages,
            max_pending_bytes=max(1, n_tasks) * settings.receive_queue_bytes,
            prefetch_messages=prefetch_messages,
            prefetch_bytes=settings.receive_queue_bytes,
        )
        return Client(
            self._worker.servers.own_program_address,
            topology=self.topology,
            client_id=f"{self.worker_id}/executors",
            incarnation=self._worker.incarnation,
            **asdict(session),
        )

    @property
    def assignment(self) -> Assignment | None:
        """The current assignment; None before the first one."""
        return self._worker.assignment

    def missing_connections(self) -> str:
        """Return the missing connections, or that the assignment is missing, as text; empty if none is."""

        def missing() -> str:
            if self._worker.assignment is None:
                return "no assignment yet"
            names = self._worker.router.connections.disconnected_workers
            return f"no connection to {', '.join(names)}" if names else ""

        return self._loop.call(missing)

    def loads(self) -> Mapping[int, float]:
        """Return the known loads of all tasks, 0 to 1."""
        return self._loop.call(self._worker.loads)

    def report_loads(self, loads: Mapping[int, float]) -> None:
        """Report the loads of the program's tasks, for other workers."""
        self._worker.program_loads = loads

    def ledger(self) -> LedgerSnapshot:
        """Return the ledger of the worker."""
        return self._loop.call(self._worker.router.ledger)

    def dropped_messages(self) -> int:
        """Return the number of messages that the worker has dropped."""
        return sum(self.ledger().dropped.values())

    def emit_dead_letter(self, letter: TaskGroup, attempts: int, reason: str) -> bool:
        """Schedule a message to the dead-letter task; return False if there is none, or no space now."""
        rejections = self._worker.router.rejections
        if not rejections.accepts_dead_letters:
            return False
        self._loop.loop.call_soon_threadsafe(rejections.emit_dead_letter, letter, attempts, reason)
        return True
