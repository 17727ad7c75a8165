"""The states of single tasks, which a client requests from their workers: consumers and unread messages.

Used by programs that wait for another one (asking.py). Owns the workers of the tasks by the last assignment.
Call only from the event loop. Design: docs/design/sessions.md ("Request and reply").
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tuplewire.connection.grpc_channel import OtherWorkers
from tuplewire.connection.task_owners import TaskOwners


class TaskState(NamedTuple):
    """The state of a task at its worker."""

    worker_id: str = ""
    """Empty if no worker owns the task."""
    queued_messages: int = 0
    """The number of messages that its consumer has not processed."""
    oldest_seconds: float = 0.0
    """The age of the oldest of them, by both hosts' clocks."""
    subscribed: bool = False
    """True if it has a consumer."""

    def __str__(self) -> str:
        if not self.worker_id:
            return "no worker owns it"
        oldest = f", the oldest for {self.oldest_seconds:.0f} s" if self.queued_messages else ""
        return f"{self.queued_messages} unread at {self.worker_id}{oldest}"


class TaskStates:
    """Requests the states of tasks from their workers."""

    def __init__(self, topology: str, address: str, workers: OtherWorkers) -> None:
        """Request assignments from the worker at `address`, the client's own."""
        self._address = address
        self._owners = TaskOwners(topology, address)
        self._own_id = ""
        self._workers = workers

    async def of(self, tasks: Iterable[int]) -> dict[int, TaskState]:
        """Return the states of tasks, without moving tasks. Raises UnreachableError and RefusedError."""
        wanted, found = set(tasks), dict[int, TaskState]()
        if not wanted <= self._owners.of.keys():
            await self._request_owners()
        try:
            for (address, worker_id), theirs in self._owners.by_worker(wanted).items():
                at = self._address if worker_id == self._own_id else address
                for each in (await self._workers.status(at, theirs)).tasks:
                    state = TaskState(worker_id, each.queued_messages, each.oldest_seconds, each.subscribed)
                    found[each.task] = state
            unowned = {task: TaskState() for task in wanted - self._owners.of.keys()}
            return {task: found[task] for task in wanted & found.keys()} | unowned
        finally:
            if not wanted <= found.keys():  # a task has moved, or its worker has failed
                self._owners.of = {}

    async def _request_owners(self) -> None:
        answer = await self._workers.assignment(self._address)
        self._own_id = answer.worker_id
        self._owners.replace(answer.assignment if answer.HasField("assignment") else None, self._address)
