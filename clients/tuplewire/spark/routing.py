"""Which task each written row goes to, a whole Arrow batch at a time."""

from __future__ import annotations

import time
from functools import lru_cache

import pyarrow as pa

from tuplewire.connection.control_client import ControlClient
from tuplewire.connection.grpc_channel import resolve_address
from tuplewire.errors import TuplewireError
from tuplewire.group import TaskGroup
from tuplewire.message import TaskMessageBatch
from tuplewire.spark.options import GroupingName, SinkOptions
from tuplewire.topology.grouping import GroupingContext, SingleGrouping, fields, shuffle
from tuplewire.topology.load_aware import LoadAwareShuffle

_REFRESH_SECONDS = 1.0
_LOAD_SECONDS = 1.0


class RowRouter:
    """Turns batches of rows into groups of messages by task, without an object per row.

    partition: of the write; the turns of a shuffle begin at different tasks in different partitions.
    """

    def __init__(self, options: SinkOptions, partition: int) -> None:
        self._options = options
        self._shuffle: SingleGrouping | None = None
        if options.grouping is GroupingName.SHUFFLE:
            self._shuffle = shuffle(options.tasks, partition)

    def groups(self, batch: pa.RecordBatch) -> tuple[TaskGroup, ...]:
        """Return the rows as messages, in order within each task.

        Raises MalformedError for a null task or message, and InvalidTaskError for an id out of range.
        """
        if not batch.num_rows:
            return ()
        tasks = self._tasks(batch)
        return TaskMessageBatch.from_arrow(tasks, batch.column("message"), self._options.source).groups

    def _tasks(self, batch: pa.RecordBatch) -> pa.Array:
        options = self._options
        if options.grouping is GroupingName.DIRECT:
            return batch.column("task")
        if options.grouping is GroupingName.FIELDS:
            keys = batch.column("key").dictionary_encode(null_encoding="encode")
            chosen = _fields(options.tasks).choose(keys.dictionary.to_pylist())
            return pa.array(chosen, pa.int32()).take(keys.indices)
        grouping = self._shuffle
        if grouping is None:
            grouping = _load_aware(resolve_address(options.address), options.tasks).refreshed()
        return pa.array(grouping.choose(range(batch.num_rows)), pa.int32())


@lru_cache(8)
def _fields(tasks: tuple[int, ...]) -> SingleGrouping:
    """Return the one grouping of this process: it remembers the tasks of keys."""
    return fields(tasks)


@lru_cache(8)
def _load_aware(address: str, tasks: tuple[int, ...]) -> _LoadAware:
    """Return the one grouping of this process: it takes longer than a micro-batch to learn the loads."""
    return _LoadAware(address, tasks)


class _LoadAware:
    def __init__(self, address: str, tasks: tuple[int, ...]) -> None:
        self._address = address
        self._tasks = tasks
        self._looked = time.monotonic()
        self._grouping = LoadAwareShuffle(GroupingContext(tasks, source=0, loads=self._loads))

    def _loads(self) -> dict[int, float]:
        try:
            with ControlClient(self._address, timeout=_LOAD_SECONDS) as control:
                return control.load(self._tasks)
        except TuplewireError:
            return {}  # whether the worker is there, sending will show

    def refreshed(self) -> SingleGrouping:
        """Return the grouping, once a second after another look at the loads."""
        now = time.monotonic()
        if now - self._looked >= _REFRESH_SECONDS:
            self._looked = now
            self._grouping.refresh()
        return self._grouping
