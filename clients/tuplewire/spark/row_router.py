"""Groups the rows of a DataFrame into messages by task, without an object for each row.

Used by the writers in Spark tasks. Owns the groupings of the process, which outlive a task. Not thread-safe.
Design: docs/design/rows-and-memory.md.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from functools import lru_cache

import pyarrow as pa

from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import TuplewireError
from tuplewire.grouping.grouping import GroupingContext, SingleGrouping, fields, shuffle
from tuplewire.grouping.load_aware import LoadAwareShuffle
from tuplewire.identity.credentials import Credentials
from tuplewire.settings.config import MIB
from tuplewire.spark.bad_rows import BadRows
from tuplewire.spark.columns import as_sent
from tuplewire.spark.options import GroupingName, SinkOptions
from tuplewire.spark.stages import SinkWorkers
from tuplewire.tracing import active
from tuplewire.tracing.context import with_entry
from tuplewire.values.arrow import groups_from_arrow
from tuplewire.values.group import TaskGroup

PIECE_BYTES = 2 * MIB
_REFRESH_SECONDS = 1.0
_LOAD_SECONDS = 1.0


def sliced(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in batches of at most about PIECE_BYTES, as views, not as copies.

    Spark's batches have 10,000 rows, which may be 100 MB. In smaller batches, the first rows are sent before
    the last ones are grouped by task, and the buffers of the copies are reused: new pages cost more than the
    copy itself.
    """
    for batch in batches:
        rows = max(1, batch.num_rows * PIECE_BYTES // max(batch.nbytes, 1))
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)


class RowRouter:
    """Converts batches of rows into groups of messages by task, without an object for each row.

    bad: counts rows that cannot be sent. With tracing, rows without a context get the current span's context.
    """

    def __init__(self, options: SinkOptions, partition: int, workers: SinkWorkers) -> None:
        """Check the tasks of the options.

        partition: its number; a shuffle starts at a different task in each. Raises UnknownTaskError, and the
        errors of SinkWorkers.known().
        """
        own = () if isinstance(options.bad_rows, str) else (options.bad_rows,)
        workers.check_known((*options.tasks, *own))
        self._options = options
        self._address = workers.reached
        limit = options.session(workers.max_message_bytes)["max_message_bytes"]
        self.bad = BadRows(options.bad_rows, partition, limit, workers.known)
        tracing = active()
        self._entry = None if tracing is None else tracing.current_entry()
        self._shuffle: SingleGrouping | None = None
        if options.grouping is GroupingName.SHUFFLE:
            self._shuffle = shuffle(options.tasks, partition)

    def checked(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows that can be sent: `task`, `message`, and `encoded` if there are keys or headers.

        Raises BadRowsError for rows that cannot be sent, if the option badRows is `fail`. Bad rows for a task
        follow the other rows of their batch.
        """
        for batch in batches:
            if not batch.num_rows:
                continue
            tasks, rows, bad = self.bad.check(self._tasks(batch), *as_sent(batch))
            yield rows.append_column("task", tasks)
            if bad and isinstance(self._options.bad_rows, int):
                to = pa.array([self._options.bad_rows] * len(bad), pa.int32())
                yield pa.RecordBatch.from_pydict({"task": to, "message": pa.array(bad, pa.binary())})

    def groups(self, rows: pa.RecordBatch) -> list[TaskGroup]:
        """Return checked rows as messages, in order within each task."""
        encoded = rows.column("encoded") if "encoded" in rows.schema.names else None
        groups = groups_from_arrow(rows.column("task"), rows.column("message"), self._options.source, encoded)
        if self._entry is None:
            return groups
        return [with_entry(group, self._entry, self.bad.max_message_bytes) for group in groups]

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
            grouping = _load_aware(self._address, options.tasks, options.credentials()).refreshed()
        return pa.array(grouping.choose(range(batch.num_rows)), pa.int32())


class _LoadAware:
    def __init__(self, address: str, tasks: tuple[int, ...], credentials: Credentials) -> None:
        self._address = address
        self._credentials = credentials
        self._tasks = tasks
        self._looked = time.monotonic()
        self._grouping = LoadAwareShuffle(GroupingContext(tasks, source=0, loads=self._loads))

    def _loads(self) -> dict[int, float]:
        try:
            with ControlClient(self._address, _LOAD_SECONDS, credentials=self._credentials) as control:
                return control.load(self._tasks)
        except TuplewireError:
            return {}  # if the worker is unreachable, the send raises the error

    def refreshed(self) -> SingleGrouping:
        """Return the grouping; refresh its loads first if they are older than a second."""
        now = time.monotonic()
        if now - self._looked >= _REFRESH_SECONDS:
            self._looked = now
            self._grouping.refresh()
        return self._grouping


# Cached for the process: `fields` remembers the tasks of keys, and a load-aware grouping needs longer than a
# micro-batch to learn the loads.
_fields = lru_cache(8)(fields)
_load_aware = lru_cache(8)(_LoadAware)
