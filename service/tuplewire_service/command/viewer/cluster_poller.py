"""Polls every worker of a cluster, given the address of one. Its assignment has the other addresses."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from tuplewire.connection.control_client import ControlClient, ControlClients
from tuplewire.errors import TuplewireError
from tuplewire.wire import control_pb2 as pb
from tuplewire_service.command.viewer.rates import WorkerSample
from tuplewire_service.control.control_messages import MAX_CLIENTS

_ANSWER_SECONDS = 1.0  # with the interval of the page, a worker that hangs is shown within three seconds


class ClusterPoller(ControlClients):
    """The clients of a cluster's workers, and their last two statuses. Not thread-safe."""

    def __init__(
        self, address: str, connect: Callable[[str], ControlClient], max_tasks: int | None = None
    ) -> None:
        """Start with the worker at `address`, without a connection.

        `connect` creates the client for an address. `max_tasks` limits the tasks of each status; None: all.
        """
        super().__init__(connect)
        self._max_tasks = max_tasks
        self._version = 0
        self._first = WorkerSample("", address)
        self._workers = [self._first]

    def poll(self) -> list[WorkerSample]:
        """Request the status of every worker, and return the workers. The next call changes them.

        Raises TuplewireError while the first worker has never answered, as only it has the other addresses.
        """
        self._poll_workers(self._workers)
        if newer := self._fetch_newer_assignment():
            self._poll_workers(self._apply_assignment(newer))
        return self._workers

    def _poll_workers(self, workers: Iterable[WorkerSample]) -> None:
        by_address = {each.address: each for each in workers}
        answers = self.call_all(by_address, self._status)
        for address, answer in answers.items():
            each = by_address[address]
            if isinstance(answer, TuplewireError):
                if not self._first.worker:  # no status has arrived yet
                    raise answer
                each.previous, each.status, each.problem = each.status or each.previous, None, str(answer)
                each.silent_seconds = time.monotonic() - each.answered_at
            else:
                each.previous, each.status, each.problem = each.status, answer, ""
                each.worker, each.task_count = answer.worker_id, answer.local_task_count
                each.answered_at = time.monotonic()

    def _status(self, client: ControlClient) -> pb.GetStatusResponse:
        if self._first.worker:  # until it has answered, the user's timeout applies
            client.timeout = min(client.timeout, _ANSWER_SECONDS)
        return client.status(MAX_CLIENTS, self._max_tasks)

    def _fetch_newer_assignment(self) -> pb.Assignment | None:
        found = [(each.status.assignment_version, each.address) for each in self._workers if each.status]
        version, address = max(found, default=(0, ""))
        if version <= self._version:
            return None
        try:
            return self[address].get_assignment()
        except TuplewireError:
            return None  # the next poll tries again

    def _apply_assignment(self, assignment: pb.Assignment) -> list[WorkerSample]:
        """Apply an assignment to the list of workers; return the new ones. The first worker always stays."""
        self._version = assignment.version
        wanted = {each.worker_id: each.address for each in assignment.workers}
        self._workers = [
            each for each in self._workers if each is self._first or wanted.get(each.worker) == each.address
        ]
        self.close_except(each.address for each in self._workers)
        known = {each.worker for each in self._workers}
        new = [
            WorkerSample(each.worker_id, each.address, task_count=len(each.tasks))
            for each in assignment.workers
            if each.worker_id not in known
        ]
        self._workers += new
        return new
