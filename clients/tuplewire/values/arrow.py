"""Conversion between Arrow arrays and message columns, without a Python object per message.

Decoding keys and headers creates objects for each distinct entry. Used by TaskMessageBatch.from_arrow() and
to_arrow(), which import this module only when called, and Spark's reader and writer. Owns no state.
Thread-safe. Design: docs/design/sessions.md ("Frames are columns", "Keys and headers are one opaque column").
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from operator import sub
from typing import Any, SupportsIndex

import pyarrow as pa
import pyarrow.compute as pc

from tuplewire.errors import MAX_TASK, MIN_TASK, InvalidTaskError, MalformedError
from tuplewire.values.columns import varint
from tuplewire.values.group import TaskGroup, check_task
from tuplewire.values.headers import TOMBSTONE, decode_headers, encode_headers

KEY = pa.binary()
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
"""The types of the columns, which are the types of Spark's Kafka connector."""

# Not pa.scalar(): it loads pandas, which takes as long as all other imports of this library in Spark.
EMPTY = pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(bytes(8)), pa.py_buffer(b"")])[0]

_SCHEMA = pa.schema([("task", pa.int32()), ("source", pa.int32()), ("message", pa.binary())])


def groups_from_arrow(
    tasks: SupportsIndex | pa.Array,
    payloads: pa.Array,
    source: SupportsIndex | None,
    headers: pa.Array | None,
) -> list[TaskGroup]:
    """Return a group for each task, sorted by task id. The messages of a group keep their order.

    Columns may be of any width or layout, chunked, sliced or dictionary-encoded. headers: encoded keys and
    headers; see encode_columns(). For the other arguments and the errors, see TaskMessageBatch.from_arrow().
    """
    payloads = binary_column(payloads, "message")
    if payloads.null_count:
        raise MalformedError(
            f"the message column has {payloads.null_count} null(s); filter or fill them first"
        )
    sender = None if source is None else check_task(source)
    if not isinstance(tasks, pa.Array | pa.ChunkedArray):
        task = check_task(tasks)
        return [_group(task, sender, payloads, headers)] if len(payloads) else []
    order, runs = runs_by_task(tasks, len(payloads), "payloads")
    payloads = payloads.take(order)
    headers = None if headers is None else headers.take(order)
    groups = []
    for task, start, count in runs:
        headers_run = None if headers is None else headers.slice(start, count)
        groups.append(_group(task, sender, payloads.slice(start, count), headers_run))
    return groups


def runs_by_task(tasks: pa.Array, count: int, noun: str) -> tuple[pa.Array, list[tuple[int, int, int]]]:
    """Return the order of rows by task, and for each task its first row in this order and its rows.

    Rows to one task stay in order. Raises as groups_from_arrow(); errors call the other values `noun`.
    """
    tasks = flat_column(tasks, "task")
    if len(tasks) != count:
        raise MalformedError(f"{len(tasks)} tasks and {count} {noun}: the columns differ in length")
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
    # Messages often share keys and headers, so each distinct entry is decoded once.
    entries = encoded.dictionary_encode()
    read = [decode_headers(entry) for entry in entries.dictionary.to_pylist()]
    keys = pa.array([key for key, _ in read], KEY).take(entries.indices)
    if not headers:
        return keys, None
    return keys, pa.array([list(pairs) or None for _, pairs in read], HEADERS).take(entries.indices)


def _binary_array(lengths: bytes, data: bytes, noun: str) -> pa.Array:
    if len(data) >= 2**31:
        raise MalformedError(f"{len(data)} bytes of {noun} are too many for one Arrow batch; slice it first")
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


def _group(task: int, source: int | None, payloads: pa.Array, headers: pa.Array | None) -> TaskGroup:
    lengths, data = _lengths_and_data(payloads)
    header_lengths, header_data = (b"", b"") if headers is None else _lengths_and_data(headers)
    if not header_data:  # no message to this task has a key or headers, so the group has no such column
        return TaskGroup(task, source, lengths, data)
    return TaskGroup(task, source, lengths, data, header_lengths=header_lengths, header_data=header_data)


def _lengths_and_data(values: pa.Array) -> tuple[bytes, bytes]:
    _, offsets, data = values.buffers()
    ends = memoryview(offsets).cast("i")
    first, last = ends[values.offset], ends[values.offset + len(values)]
    sizes = pc.binary_length(values)
    lengths = sizes.buffers()[1][4 * sizes.offset : 4 * (sizes.offset + len(sizes))]
    return lengths.to_pybytes(), data[first:last].to_pybytes() if data else b""


def encode_columns(
    keys: pa.Array | None, headers: pa.Array | None, count: int, tombstones: pa.Array | None = None
) -> pa.Array | None:
    """Return the encoded key and headers of `count` messages; None if no message has a key or headers.

    Args:
        keys: Binary or strings, null for a message without a key. None without such a column.
        headers: Lists of structs of a name and a value, in this order with any field names; null for a
            message without headers. None without such a column.
        tombstones: True for each message that gets the header TOMBSTONE.

    Raises MalformedError if a column has another type or length, or a header has no name.
    """
    parts = []
    for values, name, encode in ((keys, "key", _encode_keys), (headers, "headers", _encode_headers)):
        if values is None:
            continue
        column = flat_column(values, name)
        if len(column) != count:
            raise MalformedError(f"the column {name!r} has {len(column)} rows for {count} payloads")
        if column.null_count < count:
            parts.append(encode(column))
    if tombstones is not None and pc.any(tombstones).as_py():
        tombstone = pa.array([encode_headers(None, [(TOMBSTONE, b"")])], pa.binary())
        parts.append(pc.if_else(tombstones, tombstone[0], EMPTY))
    if not parts:
        return None
    encoded = pc.binary_join_element_wise(*parts, EMPTY)
    return encoded if pc.max(pc.binary_length(encoded)).as_py() else None


def _encode_keys(keys: pa.Array) -> pa.Array:
    keys = binary_column(keys, "key")
    return pc.if_else(keys.is_valid(), _joined(_length_prefixes(keys, b"\x0a"), keys), EMPTY)


def nameless_header_mask(headers: pa.Array) -> pa.Array:
    """Return a boolean for each message, as a column: true if one of its headers has no name."""
    rows = pc.list_parent_indices(headers).filter(_split_headers(headers)[1].is_null())
    return pc.is_in(pa.array(range(len(headers)), rows.type), value_set=rows)


def _split_headers(headers: pa.Array) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Return the headers as lists, and the names and values of all headers."""
    kind = headers.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind)
    if pa.types.is_map(kind):
        headers = headers.cast(pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)])))
    elements = headers.flatten() if is_list else None
    if elements is None or not pa.types.is_struct(elements.type) or elements.type.num_fields != 2:
        raise MalformedError(
            f"the headers column must be lists of structs of a name (string) and a value (binary), not {kind}"
        )
    names, values = elements.flatten()
    names = binary_column(names, "headers", "lists with string names")
    return headers, names, binary_column(values, "headers", "lists with binary or string values")


def _encode_headers(headers: pa.Array) -> pa.Array:
    headers, names, values = _split_headers(headers)
    if names.null_count:
        raise MalformedError(
            f"the headers column has {names.null_count} header(s) without a name; filter or fill them first"
        )
    # As in protobuf, an absent value is null, but an absent name is an empty string.
    named = pc.if_else(pc.equal(names, EMPTY), EMPTY, _joined(_length_prefixes(names, b"\x0a"), names))
    fields = _joined(named, pc.fill_null(_joined(_length_prefixes(values, b"\x12"), values), EMPTY))
    written = _joined(_length_prefixes(fields, b"\x12"), fields)
    sizes = pc.fill_null(pc.list_value_length(headers), 0).cast(pa.int32())
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(sizes)])
    return pc.binary_join(pa.ListArray.from_arrays(offsets, written), EMPTY)


def _length_prefixes(values: pa.Array, tag: bytes) -> pa.Array:
    """Return the tag and the length that precede each value on the wire."""
    sizes = pc.binary_length(values).dictionary_encode()
    heads = [tag + varint(size) for size in sizes.dictionary.to_pylist()]
    return pa.array(heads, pa.binary()).take(sizes.indices)


def _joined(left: pa.Array, right: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(left, right, EMPTY)


def binary_column(column: Any, name: str, wanted: str = "binary or string") -> pa.Array:
    """Return bytes or strings of any layout as one array of bytes. Raises MalformedError for other values."""
    column = flat_column(column, name)
    try:
        return column.cast(pa.binary())
    except pa.ArrowNotImplementedError as error:
        raise MalformedError(f"the {name} column must be {wanted}, not {column.type}") from error
    except pa.ArrowInvalid as error:
        raise _too_large(name) from error


def flat_column(column: Any, name: str) -> pa.Array:
    """Return a column as one array without a dictionary. Raises MalformedError for other objects."""
    if not isinstance(column, pa.Array | pa.ChunkedArray):
        raise MalformedError(
            f"the {name} column is a {type(column).__name__}, not an Arrow array; "
            "for Python values use TaskMessageBatch.from_columns"
        )
    try:
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    except pa.ArrowInvalid as error:
        raise _too_large(name) from error


def _too_large(name: str) -> MalformedError:
    return MalformedError(f"the {name} column has 2 GiB of data or more; pass it in smaller batches")
