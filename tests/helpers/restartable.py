"""A worker that is stopped and restarted at the same address, as in a rolling restart."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from helpers.ports import free_port, listen_peers
from helpers.topology import TOPOLOGY, assignment_file, drained_ledger
from tuplewire.connection.control_client import ControlClient
from tuplewire.processes.worker_processes import Endpoint, WorkerProcesses
from tuplewire.session.ledger import LedgerSnapshot
from tuplewire_service.command.status_report import ledger_of

_READY_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Host:
    """The host of a process: its IP address, the context for its start, and further flags of a worker."""

    address: str = "127.0.0.1"
    entered: Callable[[], AbstractContextManager[None]] = nullcontext
    flags: tuple[str, ...] = ()


THIS_HOST = Host()


@dataclass(frozen=True, slots=True)
class Restart:
    """The exit of a worker, and the times until its exit and until it was ready again, in seconds."""

    worker_id: str
    exit_code: int
    ledger: LedgerSnapshot
    ended_after: float
    ready_after: float

    def __str__(self) -> str:
        return (
            f"{self.worker_id} exit {self.exit_code} after {self.ended_after:.2f} s, "
            f"ready again after {self.ready_after:.2f} s; {self.ledger}"
        )


class RestartableWorker:
    """One worker. Each start has a separate directory and log; its assignment file may appear later."""

    def __init__(
        self,
        worker_id: str,
        directory: Path,
        assignment: Path,
        flags: Sequence[str] = (),
        *,
        drain_seconds: float = 10.0,
        host: Host = THIS_HOST,
    ) -> None:
        self.worker_id = worker_id
        self._directory = directory
        self.drain_seconds = drain_seconds
        self._host = host
        self._flags = [f"--worker-id={worker_id}", f"--assignment-file={assignment}", *flags, *host.flags]
        transport = "zmq" if "--transport=zmq" in flags else "grpc"
        address = f"{host.address}:{free_port()}"
        peers = [each.replace(THIS_HOST.address, host.address) for each in listen_peers(transport)]
        self._listen = [f"--listen={address}", *peers]
        self.reached = Endpoint(worker_id, address, "", "", 0, "".join(peers).partition("=")[2])
        """The worker's entry in an assignment; usable before its start, too."""
        self._starts = 0
        self._workers: WorkerProcesses

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._workers.stop()

    @property
    def endpoint(self) -> Endpoint:
        """The worker's addresses. Only the process id changes."""
        return self._workers.endpoints[0]

    @property
    def alive(self) -> bool:
        """True if the worker was started and has not been stopped since."""
        return bool(self._workers._children)

    @property
    def log(self) -> str:
        """The log since the last start."""
        return self._workers.log_path(0).read_text(encoding="utf-8")

    def start(self) -> None:
        """Start the worker on its ports."""
        self._starts += 1
        directory = self._directory / f"{self.worker_id}-{self._starts}"
        directory.mkdir()
        workers = WorkerProcesses(
            1,
            TOPOLOGY,
            directory=directory,
            flags=[*self._listen, *self._flags],
            drain_seconds=self.drain_seconds,
        )
        with self._host.entered():
            workers.start()
        self._workers = workers

    def wait_ready(self) -> None:
        """Wait until the worker has its assignment and its connections."""
        with ControlClient(self.endpoint.unix_address) as control:
            control.wait_ready(_READY_SECONDS)

    def end(self) -> tuple[int, LedgerSnapshot]:
        """Stop the worker by SIGTERM; return the exit code (-9: it had to be killed) and the ledger."""
        return self.stop(), drained_ledger(self._workers.log_path(0))

    def stop(self) -> int:
        """Stop the worker by SIGTERM; return the exit code (-9: it had to be killed)."""
        (code,) = self._workers.stop()
        return code

    def ledger(self) -> LedgerSnapshot:
        """Return the worker's current ledger."""
        with ControlClient(self.endpoint.unix_address) as control:
            return ledger_of(control.status().ledger)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the worker's process."""
        os.kill(self.endpoint.process_id, number)

    def kill(self) -> None:
        """Kill the worker by SIGKILL; start() restarts it."""
        self.signal(signal.SIGKILL)
        self._workers.stop()

    def discard(self) -> None:
        """Kill the worker if it is running: a drain would wait for messages that no consumer takes."""
        if self.alive:
            self.kill()

    def restart(self) -> Restart:
        """Stop the worker by SIGTERM, start it again, and wait until it is ready."""
        started = time.monotonic()
        code, ledger = self.end()
        ended = time.monotonic()
        self.start()
        self.wait_ready()
        return Restart(self.worker_id, code, ledger, ended - started, time.monotonic() - ended)


@contextmanager
def restartable(directory: Path, tasks: Iterable[int], *flags: str) -> Iterator[RestartableWorker]:
    """Run a worker that has these tasks after each start."""
    file = directory / "assignment.json"
    worker = RestartableWorker("w", directory, file, ["--drain-seconds=1", *flags])
    assignment_file(directory, 1, {worker.reached: tasks})
    with worker:
        worker.wait_ready()
        yield worker


class Hops:
    """The worker `near`, which clients connect to, and the worker `far`, which owns the tasks."""

    def __init__(self, directory: Path, transport: str, tasks: Iterable[int]) -> None:
        self.directory = directory
        file = directory / "assignment.json"

        def worker(name: str) -> RestartableWorker:
            flags = [f"--transport={transport}", f"--state-file={directory / name}.state"]
            return RestartableWorker(name, directory, file, flags, drain_seconds=20)

        self.near, self.far = self.both = worker("near"), worker("far")
        # Both have the assignment before a client can reach them.
        assignment_file(directory, 1, {self.near.reached: [], self.far.reached: tasks})
        for each in self.both:
            each.start()
        for each in self.both:
            each.wait_ready()

    def close(self) -> None:
        """Stop both workers without draining the remaining messages."""
        for each in self.both:
            each.discard()
