"""The states of single tasks, which a client requests from their workers: consumers and unread messages.

Used by programs that wait for another one (asking.py). Owns the workers of the tasks by the last assignment.
Call only from the event loop. Design: docs/design/sessions.md ("Request and reply").
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tuplewire.connection.receiver import Receiver
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
    """Requests the states of tasks from their workers, with the credentials of a subscription."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._owners = TaskOwners(receiver.identity.topology, receiver.address)
        self._own_id = ""

    async def of(self, tasks: Iterable[int]) -> dict[int, TaskState]:
        """Return the states of tasks, without moving tasks. Raises UnreachableError and RefusedError."""
        wanted, found = set(tasks), dict[int, TaskState]()
        workers, own_address = self._receiver.others, self._receiver.address
        if workers is None:  # the client of an executor
            return found
        if not wanted <= self._owners.of.keys():
            answer = await workers.assignment(own_address)
            self._own_id = answer.worker_id
            assignment = answer.assignment if answer.HasField("assignment") else None
            self._owners.replace(assignment, own_address)
        try:
            for (address, worker_id), theirs in self._owners.by_worker(wanted).items():
                at = own_address if worker_id == self._own_id else address
                for each in (await workers.status(at, theirs)).tasks:
                    state = TaskState(worker_id, each.queued_messages, each.oldest_seconds, each.subscribed)
                    found[each.task] = state
            found |= {task: TaskState() for task in wanted - self._owners.of.keys()}
            return {task: found[task] for task in wanted & found.keys()}
        finally:
            if not wanted <= found.keys():  # a task has moved, or its worker has failed
                self._owners.of = {}
