"""Conversion between Arrow columns of keys and headers and encoded ones; see tuplewire.values.headers.

Encoding creates no Python object per message. Decoding creates objects for each distinct entry. Used by
arrow.py and spark/columns.py. Owns no state. Thread-safe.
Design: docs/design/sessions.md ("Keys and headers are one opaque column").
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tuplewire.errors import MalformedError
from tuplewire.values.columns import varint
from tuplewire.values.headers import TOMBSTONE, decode_headers, encode_headers

KEY = pa.binary()
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
"""The types of the columns, which are the types of Spark's Kafka connector."""

# Not pa.scalar(): it loads pandas, which takes as long as all other imports of this library in Spark.
EMPTY = pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(bytes(8)), pa.py_buffer(b"")])[0]


def encode_columns(
    keys: pa.Array | None, headers: pa.Array | None, count: int, tombstones: pa.Array | None = None
) -> pa.Array | None:
    """Return each message's encoded key and headers; None if no message has a key or headers.

    Args:
        keys: Binary or strings, null for a message without a key. None without such a column.
        headers: Lists of structs of a name and a value, in this order with any field names; null for a
            message without headers. None without such a column.
        count: The number of messages.
        tombstones: True for each message that gets the header TOMBSTONE.

    Raises:
        MalformedError: A column has another type or length, or a header has no name.
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
    tagged = _joined(_length_prefixes(keys, b"\x0a"), keys)
    return pc.if_else(keys.is_valid(), tagged, EMPTY)


def has_nameless_header(headers: pa.Array) -> pa.Array:
    """Return a boolean for each message, as a column: true if one of its headers has no name."""
    names = _split_headers(headers)[1]
    rows = pc.list_parent_indices(headers).filter(names.is_null())
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


def decode_columns(encoded: pa.Array, *, headers: bool) -> tuple[pa.Array, pa.Array | None]:
    """Return columns of keys and, if requested, headers; null without a value. Raises as decode_headers()."""
    # Messages often share keys and headers, so each distinct entry is decoded once.
    entries = encoded.dictionary_encode()
    read = [decode_headers(entry) for entry in entries.dictionary.to_pylist()]

    def column(values: list[Any], kind: pa.DataType) -> pa.Array:
        return pa.array(values, kind).take(entries.indices)

    return (
        column([key for key, _ in read], KEY),
        column([list(pairs) or None for _, pairs in read], HEADERS) if headers else None,
    )
