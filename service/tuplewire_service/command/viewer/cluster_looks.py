"""Looks at every worker of a cluster, from any one of them: the assignment names the others."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Protocol, Self

from tuplewire.errors import TuplewireError
from tuplewire.wire import control_pb2 as pb
from tuplewire_service.command.viewer.cluster_rows import Look
from tuplewire_service.control.status_messages import MOST_CLIENTS

_MOST_AT_ONCE = 32


class IAsked(Protocol):
    """What answers for a worker: a ControlClient, or the worker's own process."""

    address: str

    def status(self, most_clients: int = 0, most_tasks: int | None = None) -> pb.GetStatusResponse:
        """Return its status; TuplewireError where there is none. For the numbers see GetStatusRequest."""

    def assignment(self) -> pb.Assignment | None:
        """Return its assignment; None: it has none. TuplewireError where it does not answer."""

    def close(self) -> None:
        """Ask no more."""


@dataclass(slots=True)
class _Worker:
    client: IAsked
    worker_id: str = ""
    now: pb.GetStatusResponse | None = None
    before: pb.GetStatusResponse | None = None
    problem: str = ""
    asked: Future[pb.GetStatusResponse] | None = None


class ClusterLooks:
    """Looks again and again; a context manager. For use in one thread at a time."""

    def __init__(
        self,
        first: IAsked,
        connect: Callable[[str], IAsked],
        most_tasks: int | None = None,
    ) -> None:
        """Begin with one worker. connect: makes the client for the address of another one.

        most_tasks: as many of each worker are told at most; None: all.
        """
        self._connect = connect
        self._most_tasks = most_tasks
        self._version = 0
        self._pool = ThreadPoolExecutor(_MOST_AT_ONCE, thread_name_prefix="look")
        self._first = _Worker(first)
        self._workers = [self._first]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ask no more; what is being asked is left to itself."""
        for each in self._workers:
            each.client.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def look(self, patience: float) -> list[Look]:
        """Ask every worker, for at most so many seconds each; who answers later is told by the look after.

        Raises TuplewireError while the first worker has never answered: nobody knows the others.
        """
        self._ask(self._workers, patience)
        if not self._first.worker_id:
            self._first.client.status()  # raises what is wrong
        if newer := self._newest():
            self._ask(self._take(newer), patience)
        return [
            Look(each.worker_id, each.client.address, each.now, each.before, each.problem)
            for each in self._workers
        ]

    def _ask(self, workers: list[_Worker], patience: float) -> None:
        for each in workers:
            if each.asked is None:
                each.asked = self._pool.submit(each.client.status, MOST_CLIENTS, self._most_tasks)
        wait([each.asked for each in workers if each.asked is not None], patience)
        for each in workers:
            self._answered(each, patience)

    def _answered(self, worker: _Worker, patience: float) -> None:
        if worker.asked is None or not worker.asked.done():
            worker.now, worker.problem = None, f"it has not answered within {patience:g} s"
            return
        try:
            status = worker.asked.result()
        except TuplewireError as error:
            worker.now, worker.problem = None, str(error)
        else:
            worker.before, worker.now, worker.problem = worker.now, status, ""
            worker.worker_id = status.worker_id
        worker.asked = None

    def _newest(self) -> pb.Assignment | None:
        """Return the newest assignment, where it is newer than the one that is known here."""
        at = max(
            (each for each in self._workers if each.now is not None),
            key=lambda each: each.now.assignment_version if each.now is not None else 0,
            default=None,
        )
        if at is None or at.now is None or at.now.assignment_version <= self._version:
            return None
        try:
            return at.client.assignment()
        except TuplewireError:
            return None  # the next look will ask again

    def _take(self, assignment: pb.Assignment) -> list[_Worker]:
        """Take note of the workers that there are now; return those that are new."""
        self._version = assignment.version
        known = {each.worker_id: each for each in self._workers}
        wanted = {each.worker_id: each.address for each in assignment.workers}
        for gone in [each for each in self._workers if each is not self._first]:
            if wanted.get(gone.worker_id) != gone.client.address:
                gone.client.close()
                self._workers.remove(gone)
                del known[gone.worker_id]
        new = [
            _Worker(self._connect(address), worker_id)
            for worker_id, address in wanted.items()
            if worker_id not in known
        ]
        self._workers += new
        return new
