"""Conversion between Arrow arrays and message columns, without a Python object per message.

Used by TaskMessageBatch.from_arrow() and to_arrow(), which import this module only when called, and Spark's
reader and writer. Owns no state. Thread-safe. Design: docs/design/sessions.md ("Frames are columns").
"""

from __future__ import annotations

import sys
from operator import sub
from typing import TYPE_CHECKING, SupportsIndex

import pyarrow as pa
import pyarrow.compute as pc

from tuplewire.errors import MAX_TASK, MIN_TASK, InvalidTaskError, MalformedError
from tuplewire.values.arrow_headers import HEADERS, KEY, binary_column, decode_columns, flat_column
from tuplewire.values.group import TaskGroup, check_task

if TYPE_CHECKING:
    from array import array
    from collections.abc import Sequence

_SCHEMA = pa.schema([("task", pa.int32()), ("source", pa.int32()), ("message", pa.binary())])


def groups_from_arrow(
    tasks: SupportsIndex | pa.Array,
    payloads: pa.Array,
    source: SupportsIndex | None,
    encoded: pa.Array | None = None,
) -> list[TaskGroup]:
    """Return a group for each task, sorted by task id. The messages of a group keep their order.

    Args:
        tasks: One id, or integers of any width. May be chunked, sliced or dictionary-encoded.
        payloads: Binary or strings of any layout. May be chunked, sliced or dictionary-encoded.
        source: The sending task; None if the sender is not a task.
        encoded: Keys and headers; see encode_columns().

    Raises:
        MalformedError: A column has nulls, a wrong type, another length, or 2 GiB or more.
        InvalidTaskError: An id is outside 0 to 2^31-1.
    """
    payloads = binary_column(payloads, "message")
    if payloads.null_count:
        raise MalformedError(
            f"the message column has {payloads.null_count} null(s); filter or fill them first"
        )
    sender = None if source is None else check_task(source)
    if not isinstance(tasks, pa.Array | pa.ChunkedArray):
        task = check_task(tasks)
        return [_group(task, sender, payloads, encoded)] if len(payloads) else []
    order, runs = runs_by_task(tasks, len(payloads), "payloads")
    payloads = payloads.take(order)
    encoded = None if encoded is None else encoded.take(order)
    groups = []
    for task, start, count in runs:
        encoded_run = None if encoded is None else encoded.slice(start, count)
        groups.append(_group(task, sender, payloads.slice(start, count), encoded_run))
    return groups


def runs_by_task(tasks: pa.Array, count: int, what: str) -> tuple[pa.Array, list[tuple[int, int, int]]]:
    """Return the order of rows by task, and for each task its first row in this order and its rows.

    Rows to one task stay in order. Raises as groups_from_arrow(); errors call the other values `what`.
    """
    tasks = flat_column(tasks, "task")
    if len(tasks) != count:
        raise MalformedError(f"{len(tasks)} tasks and {count} {what}: the columns differ in length")
    if not count:
        return pa.nulls(0, pa.int64()), []
    if not pa.types.is_integer(tasks.type) or tasks.null_count:
        nulls = f" with {tasks.null_count} null(s)" if tasks.null_count else ""
        raise MalformedError(f"the task column must be integers without nulls, not {tasks.type}{nulls}")
    bounds = pc.min_max(tasks).as_py()
    if bounds["min"] < MIN_TASK or bounds["max"] > MAX_TASK:
        raise InvalidTaskError(
            f"task ids from {bounds['min']} to {bounds['max']} are not within {MIN_TASK} to {MAX_TASK}"
        )
    order = pc.array_sort_indices(tasks)  # stable
    runs = pc.run_end_encode(tasks.take(order))
    ends = runs.run_ends.to_pylist()
    starts = [0, *ends[:-1]]
    return order, list(zip(runs.values.to_pylist(), starts, map(sub, ends, starts), strict=True))


def build_record_batch(
    groups: Sequence[TaskGroup], tasks: array[int] | None = None, sources: array[int] | None = None
) -> pa.RecordBatch:
    """Return the groups as columns `task`, `source` and `message`.

    tasks, sources: one for each message, instead of the groups'; give both or neither. A source of -1 means
    none. Raises MalformedError if the payloads have 2 GiB or more, which exceeds the limit of one column.
    """
    if tasks is None or sources is None:
        counts = list(map(len, groups))
        ids = repeat_column([group.task for group in groups], counts, pa.int32())
        senders = repeat_column([group.source for group in groups], counts, pa.int32())
    else:
        ids = pa.Array.from_buffers(pa.int32(), len(tasks), [None, pa.py_buffer(tasks)])
        plain = pa.Array.from_buffers(pa.int32(), len(sources), [None, pa.py_buffer(sources)])
        senders = pc.if_else(pc.less(plain, 0), pa.scalar(None, pa.int32()), plain)
    lengths, data = b"".join(group.lengths for group in groups), b"".join(group.data for group in groups)
    return pa.RecordBatch.from_arrays([ids, senders, _binary_array(lengths, data, "payload")], schema=_SCHEMA)


def key_and_headers(groups: Sequence[TaskGroup], *, headers: bool = True) -> tuple[pa.Array, pa.Array | None]:
    """Return the keys of all messages and, if requested, their headers; null if a message has no such value.

    Raises MalformedError if the encoded headers have 2 GiB or more, or are not valid.
    """
    count = sum(map(len, groups))
    if not any(group.header_lengths for group in groups):
        return pa.nulls(count, KEY), pa.nulls(count, HEADERS) if headers else None
    lengths = b"".join(group.header_lengths or bytes(len(group.lengths)) for group in groups)
    encoded = _binary_array(lengths, b"".join(group.header_data for group in groups), "headers")
    return decode_columns(encoded, headers=headers)


def _binary_array(lengths: bytes, data: bytes, what: str) -> pa.Array:
    if len(data) >= 2**31:
        raise MalformedError(f"{len(data)} bytes of {what} are too many for one Arrow batch; slice it first")
    count = len(lengths) // 4
    sizes = pa.Array.from_buffers(pa.int32(), count + 1, [None, pa.py_buffer(bytes(4) + lengths)])
    offsets = pc.cumulative_sum(sizes)
    return pa.Array.from_buffers(pa.binary(), count, [None, offsets.buffers()[1], pa.py_buffer(data)])


def repeat_column(values: Sequence[int | None], counts: Sequence[int], kind: pa.DataType) -> pa.Array:
    """Build a column of integers that repeats each value the given number of times. None becomes null.

    The column is built from bytes, because pyarrow loads pandas to convert Python values.
    """
    width = kind.bit_width // 8
    parts = [
        (value or 0).to_bytes(width, sys.byteorder, signed=True) * count
        for value, count in zip(values, counts, strict=True)
    ]
    rows = sum(counts)
    column = pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(b"".join(parts))])
    if None not in values:
        return column
    there = b"".join(bytes([value is not None]) * count for value, count in zip(values, counts, strict=True))
    valid = pa.Array.from_buffers(pa.uint8(), rows, [None, pa.py_buffer(there)]).cast(pa.bool_())
    return pa.Array.from_buffers(kind, rows, [valid.buffers()[1], column.buffers()[1]])


def _group(task: int, source: int | None, payloads: pa.Array, encoded: pa.Array | None) -> TaskGroup:
    lengths, data = _lengths_and_data(payloads)
    header_lengths, header_data = (b"", b"") if encoded is None else _lengths_and_data(encoded)
    if not header_data:  # no message to this task has a key or headers, so the group has no such column
        return TaskGroup(task, source, lengths, data)
    return TaskGroup(task, source, lengths, data, header_lengths=header_lengths, header_data=header_data)


def _lengths_and_data(values: pa.Array) -> tuple[bytes, bytes]:
    """Return the lengths and the data of a column of bytes."""
    _, offsets, data = values.buffers()
    ends = memoryview(offsets).cast("i")
    first, last = ends[values.offset], ends[values.offset + len(values)]
    sizes = pc.binary_length(values)
    lengths = sizes.buffers()[1][4 * sizes.offset : 4 * (sizes.offset + len(sizes))]
    return lengths.to_pybytes(), data[first:last].to_pybytes() if data else b""
