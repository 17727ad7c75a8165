"""One worker for a program, a notebook or a test, in a separate process."""

from __future__ import annotations

from typing import Unpack

from tuplewire.client import Client
from tuplewire.errors import ClosedError
from tuplewire.processes.worker_processes import WorkerProcesses
from tuplewire.settings.config import SessionKeywords, naming_settings
from tuplewire.values.task_ids import parse_tasks


class LocalWorkerProcess(WorkerProcesses):
    """A worker that runs during a `with` block; `tuplewire.local()` makes one.

    Guarantee: it does not outlive this process, even if this is killed. It inherits no TUPLEWIRE_* variable.
    """

    def __init__(self, tasks: str = "0-99", *, topology: str = "default", drain_seconds: float = 5.0) -> None:
        """Describe a worker; it starts with the block.

        Args:
            tasks: Its tasks, such as 0-99 or 1,2,10-19.
            topology: The topology that it serves.
            drain_seconds: The time limit for delivering its messages at the end.

        Raises:
            ConfigError: `tasks` is not a valid list of tasks.
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
        """Its address (host:port) for `Client`, Spark's option `address` and the command; may be empty."""
        return self.endpoints[0].address if self.endpoints else ""

    @property
    def metrics_url(self) -> str:
        """The URL of its metrics, for Prometheus and for users; empty if it does not run."""
        return self.endpoints[0].metrics_url if self.endpoints else ""

    @naming_settings
    def client(self, *, source: int | None = None, **settings: Unpack[SessionKeywords]) -> Client:
        """Return a client of this worker; the keywords are the same as for `tuplewire.Client`."""
        if not self._children:
            raise ClosedError("the worker does not run: use it in a with statement, or call start()")
        return Client(self.address, topology=self.topology, source=source, **settings)
