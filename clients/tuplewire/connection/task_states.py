"""The states of single tasks, which a client requests from their workers: consumers and unread messages.

Used by programs that wait for another one (asking.py). Owns no state. Call only from the event loop.
Design: docs/design/sessions.md ("Request and reply").
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tuplewire.connection.receiver import Receiver


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


async def states_of(receiver: Receiver, tasks: Iterable[int]) -> dict[int, TaskState]:
    """Return the states of tasks at their workers, without moving tasks.

    Uses the credentials of a subscription. Raises UnreachableError and RefusedError.
    """
    wanted, found = set(tasks), dict[int, TaskState]()
    if receiver.others is None:  # the client of an executor
        return found
    try:
        places = await receiver.workers_of(wanted)
        for (address, worker_id), theirs in places.items():
            for each in (await receiver.others.status(address, theirs)).tasks:
                state = TaskState(worker_id, each.queued_messages, each.oldest_seconds, each.subscribed)
                found[each.task] = state
        return found | dict.fromkeys(wanted.difference(*places.values()), TaskState())
    finally:
        if not wanted <= found.keys():
            receiver.forget_workers()
