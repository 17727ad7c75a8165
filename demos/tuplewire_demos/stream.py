"""Sending and receiving inside a task, with an end that proves that nothing is missing.

Every payload here is UTF-8 text. When a source has sent everything, it sends to every task of the next
component an end marker: the byte 0xFF, which occurs in no UTF-8 text, and how many messages it had sent to
that task. Messages from one task to another arrive in order, so the marker is the last, and the receiver
knows both that there is no more and that it has everything.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from tuplewire.client import Client
from tuplewire.errors import TuplewireError
from tuplewire.group import TaskGroup
from tuplewire.message import TaskMessageBatch

_MARKER = struct.Struct(">cQ")
_END = b"\xff"

IDLE_SECONDS = 120.0
"""A bolt that hears nothing for so long gives up; a failed spout ends the run much earlier."""


class IncompleteError(TuplewireError):
    """A source's messages and its own count of them differ."""


class Outlet:
    """Sends the messages of one task, `source`, to the tasks of a component, and counts them by task."""

    def __init__(self, client: Client, source: int, tasks: Iterable[int]) -> None:
        self._client = client
        self._source = source
        self._sent = dict.fromkeys(tasks, 0)

    @property
    def sent(self) -> int:
        """The messages sent so far."""
        return sum(self._sent.values())

    def send(self, batch: TaskMessageBatch) -> None:
        """Send a batch; waits for room when the receivers are slower."""
        self._client.send(batch)
        for group in batch.groups:
            self._sent[group.task] += len(group)

    def end(self) -> None:
        """Tell every task that there is no more, and wait until all of it is acknowledged.

        It must be the last thing before the task function returns: Spark kills Python workers without
        giving them a chance to finish anything.
        """
        markers = [_MARKER.pack(_END, count) for count in self._sent.values()]
        self._client.send(TaskMessageBatch.from_columns(list(self._sent), markers, self._source))
        self._client.flush()


def receive(client: Client, task: int, sources: Iterable[int]) -> Iterator[TaskGroup]:
    """Yield what arrives for a task, without the end markers, until every source has ended.

    A group is acknowledged when more is asked for. Raises IncompleteError, naming source and numbers, when
    a source sent another number of messages than it says, and TimeoutError when nothing comes any more.
    """
    arrived = dict.fromkeys(sources, 0)
    waiting = set(arrived)
    with client.recv([task], timeout=IDLE_SECONDS) as subscription:
        for batch in subscription:
            for group in batch.groups:
                source = group.source
                if source not in waiting:
                    state = "has ended" if source in arrived else "is no source of this task"
                    raise IncompleteError(
                        f"task {task}: {len(group)} message(s) from task {source}, which {state}"
                    )
                messages, declared = _without_marker(group)
                arrived[source] += len(messages)
                if len(messages):
                    yield messages
                if declared is not None:
                    if arrived[source] != declared:
                        raise IncompleteError(
                            f"task {task}: task {source} sent {declared} messages, "
                            f"and {arrived[source]} arrived"
                        )
                    waiting.remove(source)
            if not waiting:
                subscription.acknowledge()
                return


def _without_marker(group: TaskGroup) -> tuple[TaskGroup, int | None]:
    last = group.data[len(group.data) - group.sizes()[-1] :]
    if not last.startswith(_END):
        return group, None
    _, declared = _MARKER.unpack(last)
    return group.slice(0, len(group) - 1), declared
