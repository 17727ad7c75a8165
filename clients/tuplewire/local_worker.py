"""One worker for a program, a notebook or a test, as a process of its own."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Self, Unpack

from tuplewire.client import Client
from tuplewire.config import SessionKeywords, naming_settings
from tuplewire.errors import ClosedError
from tuplewire.processes import Child, bound_addresses, private_directory, worker_command
from tuplewire.task_ids import parse_tasks

_START_SECONDS = 30.0
_STOP_MARGIN_SECONDS = 10.0


class OwnWorker:
    """A worker that runs while a `with` block does; `tuplewire.local()` makes one.

    Guarantee: it does not outlive this process, even when this is killed. TUPLEWIRE_* variables do not reach
    it.

    Attributes:
        address: Where programs reach it, host:port, for `Client`, Spark's option `address` and the command.
        topology: Its topology.
        metrics_url: Where Prometheus and people see its metrics.
    """

    def __init__(self, tasks: str = "0-99", topology: str = "default", drain_seconds: float = 5.0) -> None:
        """Describe a worker; it starts with the block.

        Args:
            tasks: Its tasks, like 0-99 or 1,2,10-19.
            topology: The topology that it serves.
            drain_seconds: How long it may take at the end to deliver what it holds.

        Raises:
            ConfigError: `tasks` is no list of tasks.
        """
        parse_tasks(tasks)
        self.address = ""
        self.topology = topology
        self.metrics_url = ""
        self._tasks = tasks
        self._drain_seconds = drain_seconds
        self._directory: str | None = None
        self._child: Child | None = None

    def __repr__(self) -> str:
        where = f"at {self.address}" if self._child else "that does not run"
        return f"<OwnWorker {where}, tasks {self._tasks}>"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start it, and return once it is ready; in a notebook, where a block is of no use.

        Raises LaunchError, with the last lines of its log, when it does not start.
        """
        self._directory = private_directory()
        try:
            command = worker_command(
                "local",
                self.topology,
                Path(self._directory) / "worker.log",
                drain_seconds=self._drain_seconds,
                flags=[f"--tasks={self._tasks}"],
            )
            self._child = Child(command)
            bound = bound_addresses(self._child, time.monotonic() + _START_SECONDS)
        except BaseException:
            self.stop()
            raise
        self.address, self.metrics_url = bound["address"], bound["metrics_url"]

    @naming_settings
    def client(self, *, source: int | None = None, **settings: Unpack[SessionKeywords]) -> Client:
        """Return a client of this worker; the keywords are those of `tuplewire.Client`."""
        if self._child is None:
            raise ClosedError("the worker does not run: use it in a with statement, or call start()")
        return Client(self.address, topology=self.topology, source=source, **settings)

    def stop(self) -> None:
        """Let it deliver what it holds, and end it; a second call does nothing."""
        child, self._child = self._child, None
        if child is not None:
            child.terminate()
            child.end(time.monotonic() + self._drain_seconds + _STOP_MARGIN_SECONDS)
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None
