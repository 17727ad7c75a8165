"""The workers of tasks, by the last assignment. Not thread-safe. Design: docs/design/moves.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tuplewire.errors import NotReadyError, UnknownTaskError, WrongTopologyError
from tuplewire.settings.addresses import Peer
from tuplewire.values.task_ids import format_tasks
from tuplewire.wire import control_pb2 as pb

_MAX_OTHERS = 100
"""The maximum number of other workers' addresses to try if the first one is unreachable."""


class TaskOwners:
    """The workers of all tasks, and the addresses of workers to request the next assignment from."""

    def __init__(self, topology: str, address: str, others: Iterable[str] = ()) -> None:
        """Know no task yet. others: the addresses of more workers, if the first one is unreachable."""
        self.version = 0
        self.others = tuple(others)
        """The addresses of other workers: the given ones and the ones in assignments, the newest first."""
        self.by_address: Mapping[str, Peer] = {}
        """The workers of the last assignment, by address."""
        self.by_task: Mapping[int, Peer] = {}
        """The owner of each task in the last assignment. Receiver.invalidate_owners() clears it."""
        self._topology = topology
        self._address = address

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses to request an assignment from, in this order, until a worker answers."""
        return tuple(dict.fromkeys((self._address, *self.others)))

    def apply(self, assignment: pb.Assignment | None, address: str) -> None:
        """Apply the assignment of the worker at an address. Raises NotReadyError, WrongTopologyError."""
        if assignment is None:
            raise NotReadyError(
                f"the worker at {address} has no assignment yet: push one (tuplewire assign), or "
                "configure an assignment file"
            )
        if assignment.topology != self._topology:
            raise WrongTopologyError(
                f"the worker at {address} serves topology {assignment.topology!r}, not "
                f"{self._topology!r}: set the option topology"
            )
        self.version = assignment.version
        workers = assignment.workers
        self.by_address = {each.address: Peer(each.worker_id, each.address) for each in workers}
        self.others = tuple(dict.fromkeys((*self.by_address, *self.others)))[:_MAX_OTHERS]
        # One object for all tasks of a worker: Spark pickles it once.
        self.by_task = {task: self.by_address[each.address] for each in workers for task in each.tasks}

    def group_tasks(self, tasks: Iterable[int]) -> dict[Peer, list[int]]:
        """Return the tasks of each worker, without unknown ones."""
        tasks_by_peer: dict[Peer, list[int]] = {}
        for task in tasks:
            if task in self.by_task:
                tasks_by_peer.setdefault(self.by_task[task], []).append(task)
        return tasks_by_peer

    def unknown_error(self, tasks: Sequence[int]) -> UnknownTaskError:
        """Return the error for tasks that are not in the assignment."""
        known = format_tasks(self.by_task) or "none"
        return UnknownTaskError(
            f"task {format_tasks(tasks)} is not in assignment version {self.version}, which "
            f"has {known}: use these tasks, or assign the missing ones"
        )
