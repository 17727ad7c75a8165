"""The states of single tasks, which a client requests from their workers: consumers and unread messages.

Used by programs that wait for others (request_reply.py, team/members.py). Owns the last states. Call poll()
only from the event loop. Design: docs/design/sessions.md ("Request and reply"), docs/design/teams.md.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable
from typing import NamedTuple

from tuplewire.connection.grpc_channel import WorkerConnections
from tuplewire.connection.receiver import Receiver
from tuplewire.errors import TuplewireError
from tuplewire.settings.addresses import Peer

POLL_SECONDS = 2.0
"""The time between polls of one program."""
NO_CONSUMER_SECONDS = 5.0
"""A task without a consumer for this time has lost it. A consumer reconnects within two seconds."""


class TaskState(NamedTuple):
    """The state of a task at its worker."""

    worker_id: str | None = None
    """The worker in the assignment; empty if there is none; None if it is not known."""
    queued_messages: int | None = None
    """The number of messages that its consumer has not processed; None if it is not known."""
    oldest_seconds: float | None = None
    """The age of the oldest queued message in seconds, if known; needs synchronized clocks."""
    has_consumer: bool = True
    """False if it certainly has no consumer; True also if that is not known."""
    consumer_id: str = ""
    """The consumer's id; empty if it is not known, or there is none."""
    problem: str = "its state is not known"
    """The reason if the numbers are not known."""
    no_consumer_since: float = math.inf
    """The time (time.monotonic) of the first poll without a consumer."""
    just_left: bool = False
    """True if the poll before this one has found a consumer."""

    def __str__(self) -> str:
        if self.queued_messages is None:
            return self.problem
        seconds = time.monotonic() - self.no_consumer_since
        absent = "its consumer has just left" if self.just_left else f"no consumer for {seconds:.0f} s"
        consumer = "subscribed" if self.has_consumer else absent
        oldest = f", the oldest for {self.oldest_seconds:.0f} s" if self.oldest_seconds else ""
        return f"{consumer}, {self.queued_messages} unread at {self.worker_id}{oldest}"


class TaskStates(dict[int, TaskState]):
    """The states of tasks at the last poll. Uses the connections and credentials of a subscription."""

    def __missing__(self, _: int) -> TaskState:
        return TaskState()

    async def poll(self, receiver: Receiver, tasks: Iterable[int], *, consumer_ids: bool = False) -> None:
        """Request the states of tasks from their workers. An error is stored in the states, and not raised.

        consumer_ids: with the ids of the consumers; this needs the permission to receive from the tasks.
        """
        task_ids, connections = list(tasks), receiver.connections
        if connections is None:  # the client of an executor
            return
        topology = receiver.identity.topology if consumer_ids else None
        try:
            tasks_by_peer = await receiver.workers_of(task_ids)
            found = dict.fromkeys(task_ids, TaskState("", has_consumer=False, problem="no worker owns it"))
            states = (_states_at(connections, peer, owned, topology) for peer, owned in tasks_by_peer.items())
            for each in await asyncio.gather(*states):
                found |= each
        except TuplewireError as error:
            found = dict.fromkeys(task_ids, TaskState(problem=str(error)))
        if any(each.queued_messages is None for each in found.values()):
            receiver.invalidate_owners()
        for task, state in found.items():
            before, now = self.get(task, state), time.monotonic()
            since = math.inf if state.has_consumer else min(before.no_consumer_since, now)
            just_left = before.has_consumer and not state.has_consumer and before.queued_messages is not None
            self[task] = state._replace(no_consumer_since=since, just_left=just_left)


async def _states_at(
    connections: WorkerConnections, peer: Peer, tasks: list[int], topology: str | None
) -> dict[int, TaskState]:
    """Return the states of tasks at a worker. topology: None: without the ids of consumers."""
    found = dict.fromkeys(tasks, TaskState(peer.worker_id, problem=f"it moves to or from {peer.worker_id}"))
    try:
        if topology is None:
            for each in (await connections.status(peer.address, tasks)).tasks:
                state = TaskState(peer.worker_id, each.queued_messages, each.oldest_seconds, each.subscribed)
                found[each.task] = state
        else:
            for polled in (await connections.poll(peer.address, topology, tasks)).tasks:
                unread, name = polled.last_sequence - polled.acknowledged_sequence, polled.consumer_id
                found[polled.task] = TaskState(peer.worker_id, unread, None, bool(name), name)
    except TuplewireError as error:
        return dict.fromkeys(tasks, TaskState(peer.worker_id, problem=str(error)))
    return found
