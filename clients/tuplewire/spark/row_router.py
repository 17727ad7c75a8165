"""Checks the rows of a DataFrame, and groups them into messages by task, without an object for each row.

Rows that can never be sent are detected before a consumer sees any row of their attempt. Used by the writers
in Spark tasks. Owns the counts of one partition, and the groupings of the process, which outlive a task. Not
thread-safe. Design: docs/design/rows-and-memory.md, docs/design/sinks.md.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial, reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import MAX_TASK, MIN_TASK, MessageError, TuplewireError
from tuplewire.grouping.grouping import GroupingContext, SingleGrouping, fields, shuffle
from tuplewire.grouping.load_aware import LoadAwareShuffle
from tuplewire.identity.credentials import Credentials
from tuplewire.settings.config import MIB
from tuplewire.spark.columns import encode_rows
from tuplewire.spark.options import DROP, FAIL, GroupingName, SinkOptions
from tuplewire.spark.staging import SinkWorkers
from tuplewire.text.events import event_logger
from tuplewire.tracing import get_tracing
from tuplewire.tracing.context import with_context
from tuplewire.values.arrow import groups_from_arrow
from tuplewire.values.group import TaskGroup

logger = event_logger(__name__)

PIECE_BYTES = 2 * MIB
_REFRESH_SECONDS = 1.0
_LOAD_SECONDS = 1.0
_SHOWN_CHARS = 40
_KEPT_CHARS = 1000


def split_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in batches of at most about PIECE_BYTES, as views, not as copies.

    Spark's batches have 10,000 rows, which may be 100 MB. In smaller batches, the first rows are sent before
    the last ones are grouped by task, and the copies reuse buffers: new pages cost more than the copy.
    """
    for batch in batches:
        rows = max(1, batch.num_rows * PIECE_BYTES // max(batch.nbytes, 1))
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)


class BadRowsError(MessageError):
    """Rows that no attempt can send. No consumer has received a row of their attempt."""


@dataclass(slots=True)
class BadRowFilter:
    """Finds rows with a task or message that is null or invalid.

    policy: FAIL, DROP, or the task that gets such rows as JSON. partition: the number of the partition, for
    errors. max_message_bytes: the workers' limit. find_assigned: returns the given tasks that are assigned.
    """

    policy: str | int
    partition: int
    max_message_bytes: int
    find_assigned: Callable[[set[int]], set[int]]
    count: int = 0
    """The number of bad rows."""
    _rows: int = 0

    def filter(
        self, tasks: pa.Array, batch: pa.RecordBatch, bad_masks: Mapping[str, pa.Array] | None = None
    ) -> tuple[pa.Array, pa.RecordBatch, list[bytes]]:
        """Return the tasks and rows that can be sent, and the messages for the task that gets bad rows.

        batch: see columns.encode_rows. bad_masks: for other reasons, a mask of the rows that are bad.

        Raises BadRowsError if there are bad rows and the policy is to fail. The caller must then discard the
        rows of earlier batches, which no consumer may have seen.
        """
        first, self._rows = self._rows, self._rows + len(tasks)
        messages = batch.column("message")
        # The size of each message, as all limits count it; null for a null message.
        sizes = pc.binary_length(messages).cast(pa.int64())
        if "encoded" in batch.schema.names:
            sizes = pc.add(sizes, pc.fill_null(pc.binary_length(batch.column("encoded")).cast(pa.int64()), 0))
        nulls = tasks.null_count or sizes.null_count
        too_large = (pc.max(sizes).as_py() or 0) > self.max_message_bytes
        if not (bad_masks or nulls or too_large or self._unknown(tasks)):  # the usual case, without masks
            return tasks, batch, []
        masks = self._bad_masks(tasks.cast(pa.int64()), sizes) | dict(bad_masks or {})
        bad = reduce(pc.or_, masks.values())
        rows = pc.indices_nonzero(bad).to_pylist()
        if not rows:
            return tasks, batch, []
        self.count += len(rows)

        def describe(row: int) -> dict[str, Any]:
            why = next(reason for reason, mask in masks.items() if mask[row].as_py())
            return {"why": why, "partition": self.partition, "row": first + row, "task": tasks[row].as_py()}

        shown = describe(rows[0]) | {"message": _shortened(messages[rows[0]], _SHOWN_CHARS)}
        text = "row {row} of partition {partition}: {why} (task {task}, message {message!r})".format(**shown)
        if self.policy == FAIL:
            raise BadRowsError(
                f"{text}; {len(rows)} of the {len(tasks)} rows from {first} on cannot be sent. Fix or "
                "filter them, or set the option badRows: drop, or a task that receives them"
            )
        if self.count == len(rows):  # log the first ones only; the driver logs the total
            extra = {"rows": len(rows), "policy": self.policy, "first": text}
            logger.warning("sink.bad_rows_found", extra=extra)
        good = pc.invert(bad)
        redirected = [] if self.policy == DROP else rows
        bad_rows = [describe(row) | {"message": _shortened(messages[row], _KEPT_CHARS)} for row in redirected]
        return tasks.filter(good), batch.filter(good), [json.dumps(each).encode() for each in bad_rows]

    def _unknown(self, tasks: pa.Array) -> set[int]:
        """Return the tasks of rows that are not in the assignment. Invalid task IDs are not looked up."""
        present = {task for task in pc.unique(tasks).to_pylist() if task is not None}
        return present - self.find_assigned({task for task in present if MIN_TASK <= task <= MAX_TASK})

    def _bad_masks(self, tasks: pa.Array, sizes: pa.Array) -> dict[str, pa.Array]:
        unknown = pa.array(self._unknown(tasks), pa.int64())
        limit = self.max_message_bytes
        masks = {
            "the message is null": pc.is_null(sizes),
            f"the message has more than {limit} bytes, with its key and headers: the worker's "
            "max_message_bytes": pc.greater(sizes, limit),
            "the task is null": pc.is_null(tasks),
            f"the task is not from {MIN_TASK} to {MAX_TASK}": pc.or_(
                pc.less(tasks, MIN_TASK), pc.greater(tasks, MAX_TASK)
            ),
            "the task is not in the assignment": pc.is_in(tasks, value_set=unknown),
        }
        return {reason: pc.fill_null(mask, False) for reason, mask in masks.items()}


def _shortened(message: pa.Scalar, limit: int) -> str | None:
    value = message.as_py()
    if value is None:
        return None
    text = value if isinstance(value, str) else bytes(value).decode(errors="backslashreplace")
    return text if len(text) <= limit else f"{text[:limit]}..."


class RowRouter:
    """Converts batches of rows into groups of messages by task, without an object for each row.

    rejected: counts rows that cannot be sent. With tracing, rows without a context get the current span's.
    """

    def __init__(self, options: SinkOptions, partition: int, workers: SinkWorkers) -> None:
        """Check the tasks of the options.

        partition: its number, which selects the first task of a shuffle. Raises as check_assigned().
        """
        extra_tasks = () if isinstance(options.bad_rows, str) else (options.bad_rows,)
        workers.check_assigned((*options.tasks, *extra_tasks))
        self._options = options
        limit = options.session_settings(workers.max_message_bytes)["max_message_bytes"]
        self.rejected = BadRowFilter(options.bad_rows, partition, limit, workers.find_assigned)
        tracing = get_tracing()
        self._trace_headers = None if tracing is None else tracing.current_context()
        self._grouping: SingleGrouping | None = None
        if options.grouping is GroupingName.SHUFFLE:
            self._grouping = shuffle(options.tasks, partition)
        elif options.grouping is GroupingName.LOAD_AWARE_SHUFFLE:
            self._grouping = _load_aware(workers.last_address, options.tasks, options.credentials())
        elif options.grouping is GroupingName.FIELDS:
            self._grouping = _fields(options.tasks)

    def check_rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows that can be sent: `task`, `message`, and `encoded` if there are keys or headers.

        Raises BadRowsError for rows that cannot be sent, if the option badRows is `fail`. Bad rows for a task
        follow the other rows of their batch.
        """
        for batch in batches:
            if not batch.num_rows:
                continue
            tasks, rows, bad = self.rejected.filter(self._choose_tasks(batch), *encode_rows(batch))
            yield rows.append_column("task", tasks)
            if bad and isinstance(self._options.bad_rows, int):
                targets = pa.array([self._options.bad_rows] * len(bad), pa.int32())
                yield pa.RecordBatch.from_pydict({"task": targets, "message": pa.array(bad, pa.binary())})

    def to_groups(self, rows: pa.RecordBatch) -> list[TaskGroup]:
        """Return checked rows as messages, in order within each task."""
        encoded = rows.column("encoded") if "encoded" in rows.schema.names else None
        groups = groups_from_arrow(rows.column("task"), rows.column("message"), self._options.source, encoded)
        if self._trace_headers is None:
            return groups
        return [with_context(group, self._trace_headers, self.rejected.max_message_bytes) for group in groups]

    def _choose_tasks(self, batch: pa.RecordBatch) -> pa.Array:
        if self._grouping is None:
            return batch.column("task")
        if self._options.grouping is GroupingName.FIELDS:
            keys = batch.column("key").dictionary_encode(null_encoding="encode")
            return pa.array(self._grouping.choose(keys.dictionary.to_pylist()), pa.int32()).take(keys.indices)
        return pa.array(self._grouping.choose(range(batch.num_rows)), pa.int32())


class _LoadAware(LoadAwareShuffle):
    def __init__(self, address: str, tasks: tuple[int, ...], credentials: Credentials) -> None:
        super().__init__(GroupingContext(tasks, source=0, loads=self._fetch_loads))
        self._connect = partial(ControlClient, address, _LOAD_SECONDS, credentials=credentials)
        self._refreshed_at = time.monotonic()

    def _fetch_loads(self) -> dict[int, float]:
        try:
            with self._connect() as control:
                return control.get_loads(self.tasks)
        except TuplewireError:
            return {}  # if the worker is unreachable, the send raises the error

    def choose(self, keys: Sequence[Any]) -> list[int]:
        """Return a task for each message; refresh the loads first if they are older than a second."""
        now = time.monotonic()
        if now - self._refreshed_at >= _REFRESH_SECONDS:
            self._refreshed_at = now
            self.refresh()
        return super().choose(keys)


# Cached for the process: `fields` remembers the tasks of keys, and a load-aware grouping needs longer than a
# micro-batch to learn the loads.
_fields = lru_cache(8)(fields)
_load_aware = lru_cache(8)(_LoadAware)
