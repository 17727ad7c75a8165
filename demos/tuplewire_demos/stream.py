"""Sending and receiving inside a task, with an end that proves that nothing is missing.

Every payload here is UTF-8 text or rows (pack_rows). When a source has sent everything, it sends to every
task of the next component an end marker: the byte 0xFF, how many messages it had sent to that task, and how
many sources there are. No UTF-8 text has that byte, and rows are longer. Messages from one task to another
arrive in order, so the marker is the last, and the receiver knows both that there is no more and that it has
everything.
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
"""A bolt that hears nothing for so long gives up; a failed spout ends the run much earlier."""


class IncompleteError(TuplewireError):
    """A source's messages and its own count of them differ."""


class Outlet:
    """Sends the messages of one task, `source`, to the tasks of a component, and counts them by task.

    sources: how many tasks send to them, this one among them.
    """

    def __init__(self, client: Client, source: int, tasks: Iterable[int], sources: int = 1) -> None:
        self._client = client
        self._source = source
        self._sources = sources
        self._sent = dict.fromkeys(tasks, 0)

    @property
    def sent(self) -> Mapping[int, int]:
        """The messages sent so far, by task."""
        return self._sent

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
        markers = [_MARKER.pack(_END, count, self._sources) for count in self._sent.values()]
        self._client.send(TaskMessageBatch.from_columns(list(self._sent), markers, self._source))
        self._client.flush()


def receive(client: Client, task: int) -> Iterator[TaskGroup]:
    """Yield what arrives for a task, without the end markers, until every source has ended.

    A group is acknowledged when more is asked for. Raises IncompleteError, naming source and numbers, when
    a source sent another number of messages than it says, and TimeoutError when nothing comes any more.
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
                        f"task {task}: {len(group)} message(s) from task {source}, which has ended"
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
