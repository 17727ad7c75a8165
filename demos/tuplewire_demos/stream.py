"""Sending and receiving inside a task, with an end marker that detects missing messages.

A payload is UTF-8 text or rows (pack_rows). After its last message, a source sends an end marker to every
task of the next component: the byte 0xFF, the number of messages to that task, and the number of sources.
UTF-8 text does not contain this byte, and rows are longer. Messages between two tasks arrive in order, so the
marker is the last one, and the receiver can check that it has all messages.
Used by flight_tasks.py. Owns the counts. Not thread-safe.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from tuplewire.client import Client
from tuplewire.errors import TuplewireError
from tuplewire.values.batch import TaskMessageBatch
from tuplewire.values.group import TaskGroup

_MARKER = struct.Struct(">cQI")
_END = b"\xff"

IDLE_SECONDS = 120.0
"""A bolt fails if it receives no message for this time. A failed spout ends the run much earlier."""


class IncompleteError(TuplewireError):
    """The messages of a source do not match the count in its end marker."""


class Outlet:
    """Sends the messages of one of `sources` tasks, `source`, to a component, and counts them by task."""

    def __init__(self, client: Client, source: int, tasks: Iterable[int], sources: int = 1) -> None:
        self._client = client
        self._source = source
        self._sources = sources
        self._sent = dict.fromkeys(tasks, 0)

    @property
    def sent(self) -> Mapping[int, int]:
        """The number of messages sent so far, by task."""
        return self._sent

    def send(self, batch: TaskMessageBatch) -> None:
        """Send a batch; wait for free space if the receivers are slower."""
        self._client.send(batch)
        for group in batch.groups:
            self._sent[group.task] += len(group)

    def end(self) -> None:
        """Send the end markers, and wait for all acknowledgements. Call this last in the task function.

        When the function returns, Spark kills the Python worker without a cleanup.
        """
        markers = [_MARKER.pack(_END, count, self._sources) for count in self._sent.values()]
        self._client.send(TaskMessageBatch.from_columns(list(self._sent), markers, self._source))
        self._client.flush()


def receive(client: Client, task: int) -> Iterator[TaskGroup]:
    """Yield the messages to a task, without end markers, until every source has sent its end marker.

    A batch of groups is acknowledged when the next one is requested. Raises IncompleteError if the number of
    messages from a source is wrong, and TimeoutError if no more messages arrive.
    """
    arrived: Counter[int | None] = Counter()
    ended: set[int | None] = set()
    sources = 0
    with client.recv([task], timeout=IDLE_SECONDS) as subscription:
        for batch in subscription:
            for group in batch.groups:
                source = group.source
                if source in ended:
                    raise IncompleteError(
                        f"task {task}: {len(group)} message(s) from task {source}, which has stopped"
                    )
                messages, end = _without_marker(group)
                arrived[source] += len(messages)
                if len(messages):
                    yield messages
                if end is not None:
                    declared, sources = end
                    if arrived[source] != declared:
                        raise IncompleteError(
                            f"task {task}: task {source} sent {declared} messages, "
                            f"and {arrived[source]} arrived"
                        )
                    ended.add(source)
            if ended and len(ended) == sources:
                subscription.acknowledge()
                return


def _without_marker(group: TaskGroup) -> tuple[TaskGroup, tuple[int, int] | None]:
    last = group.data[len(group.data) - group.sizes()[-1] :]
    if len(last) != _MARKER.size or not last.startswith(_END):
        return group, None
    _, declared, sources = _MARKER.unpack(last)
    return group.slice(0, len(group) - 1), (declared, sources)
