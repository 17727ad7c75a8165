"""Workers of one topology as processes on this machine.

Used by tuplewire.local(), Spark topologies, the demos and tests. Owns the processes and, if no directory is
given, a temporary one for their sockets and logs. Not thread-safe. Design: docs/design/topologies.md.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any, Self, Unpack

from tuplewire.client import Client
from tuplewire.connection.control_client import ControlClient, ControlClients
from tuplewire.errors import ClosedError, ConfigError, DrainingError, TuplewireError, UnreachableError
from tuplewire.identity.credentials import Credentials
from tuplewire.processes.child import Child, Command, LaunchError, make_private_directory
from tuplewire.settings.config import SessionKeywords, check_timeout, expand_settings
from tuplewire.values.task_ids import parse_tasks
from tuplewire.wire import control_pb2

_READY_SECONDS = 30.0
_STOP_MARGIN_SECONDS = 10.0
_POLL_SECONDS = 0.02
_MAX_SOCKET_PATH_BYTES = 100
"""The maximum path length; the kernel accepts 107 bytes for the path of a Unix socket."""
_NO_CREDENTIALS = Credentials()
_NOT_RUNNING = "the workers do not run: use a with statement, or call start()"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The addresses of one worker: for other workers, for programs on this machine, and for Prometheus."""

    worker_id: str
    address: str
    unix_address: str
    metrics_url: str
    process_id: int
    peer_address: str = ""
    """Its address for other workers, if it differs from `address`."""

    def to_assigned_worker(self, tasks: Iterable[int]) -> control_pb2.AssignedWorker:
        """Return the worker with its tasks, for an assignment."""
        return control_pb2.AssignedWorker(
            worker_id=self.worker_id, address=self.address, peer_address=self.peer_address, tasks=tasks
        )


class WorkerProcesses:
    """Starts workers of one topology, and stops them at the end of a `with` block.

    Args:
        count: The number of workers, with the ids worker-0, worker-1 and so on.
        directory: For their sockets and logs. Default: a temporary one, removed at the end.
        flags: More flags for each `tuplewire worker`.
        drain_seconds: The time limit for each drain.
        credentials: Used by assign(), if the flags require credentials.
        environment: Variables of the workers, added to this process's.

    Guarantee: the workers do not outlive this process, even if it is killed: each stops at the end of its
    standard input, which this process keeps open. They do not inherit TUPLEWIRE_* variables.
    """

    def __init__(
        self,
        count: int,
        topology: str,
        *,
        directory: Path | None = None,
        flags: Sequence[str] = (),
        drain_seconds: float = 10.0,
        credentials: Credentials = _NO_CREDENTIALS,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        if not (check_timeout(drain_seconds, "drain_seconds") or 0.0) > 0:
            raise ConfigError(f"drain_seconds must be more than 0, not {drain_seconds!r}")
        self.topology = topology
        self.endpoints: list[Endpoint] = []
        self.directory = directory
        self.exit_codes: list[int] = []
        self._count = count
        self._flags = tuple(flags)
        self._drain_seconds = drain_seconds
        self._credentials = credentials
        self._environment = environment or {}
        self._temporary_paths: list[Path] = []
        self._children: list[Child] = []
        self._version = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        alive = sum(child.process.poll() is None for child in self._children)
        return f"<{type(self).__name__} {self.topology}: {alive} of {self._count} alive>"

    def start(self, timeout: float = _READY_SECONDS) -> None:
        """Start the workers, and wait up to `timeout` seconds until each has bound its addresses.

        A second call before stop() does nothing. Raises LaunchError, with the last lines of its log, if a
        worker does not start.
        """
        if self._children:  # for example in a `with` block after start()
            return
        if self.directory is None:
            self.directory = self._temporary_directory()
        deadline = time.monotonic() + timeout
        try:
            for index in range(self._count):
                command = self._command(index)
                command.log_path.with_suffix(".json").unlink(missing_ok=True)  # a killed process leaves it
                self._children.append(Child(command))
            self.endpoints = [
                wait_for_addresses(child, child.command.log_path.with_suffix(".json"), deadline)
                for child in self._children
            ]
        except BaseException:
            self.stop()
            raise

    def _command(self, index: int) -> Command:
        log = self.log_path(index)
        socket = log.with_suffix(".sock").absolute()  # as a worker and its clients require
        if len(os.fsencode(socket)) > _MAX_SOCKET_PATH_BYTES:  # the given directory may have a long path
            socket = self._temporary_directory(_MAX_SOCKET_PATH_BYTES - len("/worker.sock")) / "worker.sock"
        arguments = worker_command(
            log.stem,
            self.topology,
            self._drain_seconds,
            "--listen=127.0.0.1:0",
            f"--listen-unix={socket}",
            f"--address-file={log.with_suffix('.json')}",
            *self._flags,
        )
        return Command(name=log.stem, arguments=arguments, log_path=log, environment=self._environment)

    def _temporary_directory(self, max_bytes: int = 4096) -> Path:
        self._temporary_paths.append(Path(make_private_directory(max_bytes)))
        return self._temporary_paths[-1]

    def log_path(self, index: int) -> Path:
        """Return the file with a worker's output. Raises LaunchError before the start."""
        if self.directory is None:
            raise LaunchError(_NOT_RUNNING)
        return self.directory / f"worker-{index}.log"

    def assign(
        self, tasks: Mapping[int, Sequence[int]], timeout: float = _READY_SECONDS
    ) -> control_pb2.Assignment:
        """Assign tasks by the index of the worker, wait until all are ready, and return the assignment.

        A worker without an entry gets no tasks. `timeout` is the maximum wait in seconds.

        Raises:
            ClosedError: The workers do not run.
            ConfigError: There is no such worker.
            ProtocolError: A task is assigned twice.
            UnreachableError: A worker is not ready in time.
        """
        if not self._children:
            raise ClosedError(_NOT_RUNNING)
        if unknown := [index for index in tasks if index not in range(self._count)]:
            raise ConfigError(f"there is no worker {unknown[0]!r} of {self._count}: count them from 0")
        self._version += 1
        workers = (each.to_assigned_worker(tasks.get(index, ())) for index, each in enumerate(self.endpoints))
        assignment = control_pb2.Assignment(version=self._version, topology=self.topology, workers=workers)
        children = {each.address: child for each, child in zip(self.endpoints, self._children, strict=True)}
        with ControlClients(partial(ControlClient, credentials=self._credentials)) as clients:
            for call in (methodcaller("update_assignment", assignment), methodcaller("wait_ready", timeout)):
                for address, answer in clients.call_all(children, call).items():
                    if isinstance(answer, UnreachableError | DrainingError):
                        raise UnreachableError(f"{answer}\n{children[address].log_tail()}") from answer
                    if isinstance(answer, TuplewireError):
                        raise answer
        return assignment

    def stop(self) -> list[int]:
        """Drain and stop all workers. A second call does nothing.

        Return for each worker 0 if it has drained, 1 if the drain dropped messages, 70 if it did not close in
        time, and -9 if it was killed ten seconds after its drain's deadline.
        """
        if self._children:
            for child in self._children:  # all before the first wait, so that they drain at the same time
                child.process.terminate()
            deadline = time.monotonic() + self._drain_seconds + _STOP_MARGIN_SECONDS
            self.exit_codes = [child.wait_or_kill(deadline) for child in self._children]
            self._children.clear()
        for directory in self._temporary_paths:
            shutil.rmtree(directory, ignore_errors=True)
        if self.directory in self._temporary_paths:
            self.directory = None
        self._temporary_paths.clear()
        return self.exit_codes


class LocalWorkerProcess(WorkerProcesses):
    """A worker that runs during a `with` block; `tuplewire.local()` makes one.

    Guarantee: it does not outlive this process, even if this is killed. It inherits no TUPLEWIRE_* variable.

    Example:
        >>> with tuplewire.local("0-99") as worker, worker.client() as client:
        ...     client.send(42, b"payload")
    """

    def __init__(self, tasks: str = "0-99", *, topology: str = "default", drain_seconds: float = 5.0) -> None:
        """Describe a worker; it starts with the block.

        Args:
            tasks: Its tasks, such as 0-99 or 1,2,10-19.
            topology: The topology that it serves.
            drain_seconds: The time limit for delivering its messages at the end.

        Raises ConfigError if `tasks` is not a valid list of tasks, or `drain_seconds` is not more than 0.
        """
        parse_tasks(tasks)
        flags = ["--worker-id=local", f"--tasks={tasks}"]
        super().__init__(1, topology, flags=flags, drain_seconds=drain_seconds)
        self._tasks = tasks

    def __repr__(self) -> str:
        where = f"at {self.address}" if self._children else "that does not run"
        return f"<LocalWorkerProcess {where}, tasks {self._tasks}>"

    @property
    def address(self) -> str:
        """Its address (host:port) for `Client`, Spark and the command; empty before the start."""
        return self.endpoints[0].address if self.endpoints else ""

    @property
    def metrics_url(self) -> str:
        """The URL of its metrics, for Prometheus and for users; empty before the start."""
        return self.endpoints[0].metrics_url if self.endpoints else ""

    @expand_settings
    def client(self, *, source: int | None = None, **settings: Unpack[SessionKeywords]) -> Client:
        """Return a client of this worker; see `tuplewire.Client`. Raises ClosedError if it does not run."""
        if not self._children:
            raise ClosedError("the worker does not run: use it in a with statement, or call start()")
        return Client(self.address, topology=self.topology, source=source, **settings)


def worker_command(
    worker_id: str, topology: str, drain_seconds: float, *flags: str, options: Sequence[str] = ()
) -> list[str]:
    """Return the command line of a worker that stops at the end of its standard input.

    flags: more flags of `tuplewire worker`. options: options of the Python interpreter.
    """
    return [
        *(sys.executable, *options, "-m", "tuplewire_service", "worker", "--exit-on-stdin-eof"),
        f"--worker-id={worker_id}",
        f"--topology={topology}",
        "--listen-admin=127.0.0.1:0",
        f"--drain-seconds={drain_seconds}",
        *flags,
    ]


def wait_for_addresses(worker: Child, file: Path, deadline: float) -> Endpoint:
    """Wait until a worker has written its addresses to a file, and return them.

    deadline: in monotonic time. Raises LaunchError with the end of its log if it exits, or at the deadline.
    """
    while not file.exists():
        # The file may appear, or the process may exit. Only the exit can be awaited, so the file is polled.
        code = worker.wait(_POLL_SECONDS)
        if code is not None:
            raise LaunchError(f"{worker.command.name} ended with code {code}\n{worker.log_tail()}")
        if time.monotonic() > deadline:
            raise LaunchError(f"{worker.command.name} did not bind in time\n{worker.log_tail()}")
    addresses = json.loads(file.read_text(encoding="utf-8"))
    values: Any = {each.name: addresses[each.name] or "" for each in fields(Endpoint)}
    return Endpoint(**values)
