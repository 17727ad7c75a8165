"""Polls every worker of a cluster, given the address of one: its assignment has the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tuplewire.connection.control_client import ControlClient
from tuplewire.connection.control_clients import ControlClients
from tuplewire.errors import TuplewireError
from tuplewire.wire import control_pb2 as pb
from tuplewire_service.command.viewer.cluster_rows import Look
from tuplewire_service.control.control_messages import MOST_CLIENTS


@dataclass(slots=True)
class _Worker:
    address: str
    worker_id: str = ""
    now: pb.GetStatusResponse | None = None
    before: pb.GetStatusResponse | None = None
    problem: str = ""


class ClusterLooks(ControlClients[ControlClient]):
    """The clients of a cluster's workers, and their last two statuses. Not thread-safe."""

    def __init__(
        self,
        first: str,
        connect: Callable[[str], ControlClient],
        most_tasks: int | None = None,
    ) -> None:
        """Begin with the address of one worker.

        Args:
            first: The address of that worker.
            connect: Makes the client of an address.
            most_tasks: The most tasks that each worker reports; None: all.
        """
        super().__init__(connect)
        self._most_tasks = most_tasks
        self._version = 0
        self._first = _Worker(first)
        self._workers = [self._first]

    def look(self) -> list[Look]:
        """Request the status of every worker.

        Raises TuplewireError while the first worker has never answered, as only it has the other addresses.
        """
        self._ask(self._workers)
        if newer := self._newest():
            self._ask(self._take(newer))
        return [
            Look(each.worker_id, each.address, each.now, each.before, each.problem) for each in self._workers
        ]

    def _ask(self, workers: Iterable[_Worker]) -> None:
        asked = {each.address: each for each in workers}
        answers = self.each(asked, lambda client: client.status(MOST_CLIENTS, self._most_tasks))
        for address, answer in answers.items():
            worker = asked[address]
            if isinstance(answer, TuplewireError):
                if not self._first.worker_id:
                    raise answer
                worker.now, worker.problem = None, str(answer)
            else:
                worker.before, worker.now, worker.problem = worker.now, answer, ""
                worker.worker_id = answer.worker_id

    def _newest(self) -> pb.Assignment | None:
        """Return the newest assignment, where it is newer than the one that is known here."""
        found = [(each.now.assignment_version, each.address) for each in self._workers if each.now]
        version, address = max(found, default=(0, ""))
        if version <= self._version:
            return None
        try:
            return self[address].assignment()
        except TuplewireError:
            return None  # until the next look

    def _take(self, assignment: pb.Assignment) -> list[_Worker]:
        """Keep the workers of an assignment; return the new ones."""
        self._version = assignment.version
        wanted = {each.worker_id: each.address for each in assignment.workers}
        self._workers = [
            each
            for each in self._workers
            if each is self._first or wanted.get(each.worker_id) == each.address
        ]
        self.keep(each.address for each in self._workers)
        known = {each.worker_id for each in self._workers}
        new = [_Worker(address, worker_id) for worker_id, address in wanted.items() if worker_id not in known]
        self._workers += new
        return new
