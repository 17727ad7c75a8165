"""Messages as the Arrow columns that the format `tuplewire` reads and writes.

Used by range_reader.py and row_router.py. Owns no state. Thread-safe. Design: docs/design/rows-and-memory.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from tuplewire.values.arrow import (
    EMPTY,
    HEADERS,
    KEY,
    build_record_batch,
    encode_columns,
    key_and_headers,
    nameless_header_mask,
    repeat_column,
)
from tuplewire.values.headers import TOMBSTONE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tuplewire.values.group import TaskGroup

_TIME = pa.timestamp("us", tz="UTC")
_TOMBSTONE_NAME = TOMBSTONE.encode()


def read_batch(groups: Sequence[TaskGroup], first: int, *, headers: bool = False) -> pa.RecordBatch:
    """Return consecutive messages of one task in the columns of read_schema; a tombstone's message is null.

    first: the first sequence. Raises MalformedError if a program has sent an invalid key or headers.
    """
    columns = build_record_batch(groups)
    message = columns.column("message")
    if any(_TOMBSTONE_NAME in group.header_data for group in groups):
        key, pairs, message = _with_tombstones(groups, message)
    else:
        key, pairs = key_and_headers(groups, headers=headers)
    count = columns.num_rows
    # first, first + 1 and so on, without an object for each row.
    sequences = pc.cumulative_sum(repeat_column([first, 1], [1, count - 1], pa.int64()))
    # Whole milliseconds: finer digits may differ between attempts.
    times = [group.accepted_micros // 1000 * 1000 or None for group in groups]
    columns_by_name = {
        "task": columns.column("task"),
        "message": message,
        "source": columns.column("source"),
        "sequence": sequences,
        "timestamp": repeat_column(times, list(map(len, groups)), _TIME),
        "key": key,
    }
    return pa.RecordBatch.from_pydict(columns_by_name | {"headers": pairs} if headers else columns_by_name)


def _with_tombstones(groups: Sequence[TaskGroup], message: pa.Array) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Return keys, headers and messages. A message with the tombstone header is null, without that header."""
    key, pairs = key_and_headers(groups)
    read: list[Any] = [] if pairs is None else [each or [] for each in pairs.to_pylist()]
    marked = pa.array([any(pair["key"] == TOMBSTONE for pair in each) for each in read])
    others = [[pair for pair in each if pair["key"] != TOMBSTONE] or None for each in read]
    return key, pa.array(others, HEADERS), pc.if_else(marked, pa.nulls(len(message), message.type), message)


def encode_rows(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[str, pa.Array]]:
    """Return rows to write as they are sent, and for each reason a mask of the rows that cannot be sent.

    The columns are `message` and, with a column for keys or headers, `encoded`. A null message with a key is
    a tombstone; see tuplewire.values.headers.
    """
    key, headers = _sent_column(batch, "key"), _sent_column(batch, "headers")
    message = batch.column("message")
    if key is None and headers is None:
        return pa.RecordBatch.from_pydict({"message": message}), {}
    bad_masks: dict[str, pa.Array] = {}
    if headers is not None and pc.any(nameless := nameless_header_mask(headers)).as_py():
        bad_masks["a header has no name"] = nameless
        rows = pa.array(range(len(headers)))
        headers = headers.take(pc.if_else(nameless, pa.nulls(len(rows), rows.type), rows))
    tombstones = None
    if key is not None and message.null_count:
        tombstones = pc.and_(message.is_null(), key.is_valid())
        message = pc.if_else(tombstones, EMPTY.cast(message.type), message)
    encoded = encode_columns(key, headers, len(message), tombstones)
    columns = {"message": message, "encoded": pa.nulls(len(message), KEY) if encoded is None else encoded}
    return pa.RecordBatch.from_pydict(columns), bad_masks


def _sent_column(batch: pa.RecordBatch, name: str) -> pa.Array | None:
    """Return the column of keys or headers of rows to write; None if there is none, or it is not sent."""
    if name not in batch.schema.names:
        return None
    column = batch.column(name)
    return None if pa.types.is_integer(column.type) else column  # an integer key is only for the grouping
