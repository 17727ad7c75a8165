"""Detects rows that can never be sent, before a consumer sees any row of their attempt.

Used by RowRouter. Owns the counts of rows of one partition. Not thread-safe. Design: docs/design/sinks.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tuplewire.errors import MAX_TASK, MIN_TASK, MessageError
from tuplewire.spark.options import DROP, FAIL
from tuplewire.text.events import event_logger

logger = event_logger(__name__)

_SHOWN_BYTES = 40
_KEPT_BYTES = 1000


class BadRowsError(MessageError):
    """Rows that can never be sent, in any attempt. No row of their attempt was sent."""


@dataclass(slots=True)
class BadRows:
    """Finds rows with a task or message that is null or invalid.

    policy: FAIL, DROP, or the task that gets such rows as JSON. partition: the number of the partition, for
    errors. max_message_bytes: the workers' limit. known: returns the given tasks that are in the assignment.
    """

    policy: str | int
    partition: int
    max_message_bytes: int
    known: Callable[[set[int]], set[int]]
    count: int = 0
    """The number of bad rows."""
    _rows: int = 0

    def check(
        self, tasks: pa.Array, batch: pa.RecordBatch, wrong: Mapping[str, pa.Array] | None = None
    ) -> tuple[pa.Array, pa.RecordBatch, list[bytes]]:
        """Return the tasks and rows that can be sent, and the messages for the task that gets bad rows.

        batch: see columns.as_sent. wrong: for other reasons, a mask of the rows that are bad.

        Raises BadRowsError if there are bad rows and the policy is to fail. The caller must then discard the
        rows of earlier batches, which no consumer may have seen.
        """
        first, self._rows = self._rows, self._rows + len(tasks)
        messages = batch.column("message")
        # The size of each message, as all limits count it; null for a null message.
        sizes = pc.binary_length(messages).cast(pa.int64())
        if "encoded" in batch.schema.names:
            encoded = pc.binary_length(batch.column("encoded")).cast(pa.int64())
            sizes = pc.add(sizes, pc.fill_null(encoded, 0))
        nulls = tasks.null_count or sizes.null_count
        too_large = (pc.max(sizes).as_py() or 0) > self.max_message_bytes
        if not (wrong or nulls or too_large or self._unknown(tasks)):  # the usual case, without masks
            return tasks, batch, []
        reasons = self._reasons(tasks.cast(pa.int64()), sizes) | dict(wrong or {})
        bad = pa.array([False] * len(tasks))
        for mask in reasons.values():
            bad = pc.or_(bad, mask)
        rows = pc.indices_nonzero(bad).to_pylist()
        if not rows:
            return tasks, batch, []
        self.count += len(rows)

        def story(row: int) -> dict[str, Any]:
            why = next(reason for reason, mask in reasons.items() if mask[row].as_py())
            return {"why": why, "partition": self.partition, "row": first + row, "task": tasks[row].as_py()}

        told = story(rows[0]) | {"message": _shortened(messages[rows[0]], _SHOWN_BYTES)}
        text = "row {row} of partition {partition}: {why} (task {task}, message {message!r})".format(**told)
        if self.policy == FAIL:
            raise BadRowsError(
                f"{text}; {len(rows)} of the {len(tasks)} rows from {first} on cannot be sent. Fix or "
                "filter them, or set the option badRows: drop, or the task that is to get them"
            )
        if self.count == len(rows):  # log the first ones only; the driver logs the total
            logger.warning("sink.bad_rows", extra={"rows": len(rows), "policy": self.policy, "first": text})
        good = pc.invert(bad)
        if self.policy == DROP:
            return tasks.filter(good), batch.filter(good), []
        stories = [story(row) | {"message": _shortened(messages[row], _KEPT_BYTES)} for row in rows]
        return tasks.filter(good), batch.filter(good), [json.dumps(each).encode() for each in stories]

    def _unknown(self, tasks: pa.Array) -> set[int]:
        """Return the tasks of rows that are not in the assignment. Invalid task IDs are not looked up."""
        there = {task for task in pc.unique(tasks).to_pylist() if task is not None}
        return there - self.known({task for task in there if MIN_TASK <= task <= MAX_TASK})

    def _reasons(self, tasks: pa.Array, sizes: pa.Array) -> dict[str, pa.Array]:
        unknown = pa.array(self._unknown(tasks), pa.int64())
        limit = self.max_message_bytes
        masks = {
            "the message is null": pc.is_null(sizes),
            f"the message has more than {limit} bytes, with its key and headers: the worker's "
            "max_message_bytes": pc.greater(sizes, limit),
            "the task is null": pc.is_null(tasks),
            f"a task id is from {MIN_TASK} to {MAX_TASK}": pc.or_(
                pc.less(tasks, MIN_TASK), pc.greater(tasks, MAX_TASK)
            ),
            "the task is not in the assignment": pc.is_in(tasks, value_set=unknown),
        }
        return {reason: pc.fill_null(mask, False) for reason, mask in masks.items()}


def _shortened(message: pa.Scalar, most: int) -> str | None:
    value = message.as_py()
    if value is None:
        return None
    text = value if isinstance(value, str) else bytes(value).decode(errors="backslashreplace")
    return text if len(text) <= most else f"{text[:most]}..."
