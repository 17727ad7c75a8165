"""Arrow columns of keys and headers to encoded ones and back; see tuplewire.headers. Needs pyarrow.

Writing makes no Python object per message. Reading makes some for each that differs from all others.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tuplewire.errors import MalformedError
from tuplewire.headers import decode_headers

KEY = pa.binary()
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
"""The types of the columns, which are those of Spark's Kafka connector."""

# pyarrow loads pandas for pa.scalar(), which takes as long as all else that a Spark process loads for us.
_EMPTY = pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(bytes(8)), pa.py_buffer(b"")])[0]
_SHORT = 128
"""A length below this takes one byte on the wire."""


def encode_columns(keys: pa.Array | None, headers: pa.Array | None, count: int) -> pa.Array | None:
    """Return each message's key and headers, encoded; None if no message has any.

    keys: binary or strings; null: the message has none. headers: lists of structs of a name and a value, in
    this order, whatever they are called; null: none. None: no such column.

    Raises MalformedError for other types, columns of another length, and nulls within headers.
    """
    parts = []
    for column, name, encode in ((keys, "key", _encoded_keys), (headers, "headers", _encoded_headers)):
        if column is None:
            continue
        if len(column) != count:
            raise MalformedError(f"{len(column)} {name} and {count} payloads: the columns differ in length")
        if column.null_count < count:
            parts.append(encode(column))
    if not parts:
        return None
    encoded = _joined(*parts) if len(parts) > 1 else parts[0]
    return encoded if pc.max(pc.binary_length(encoded)).as_py() else None


def _encoded_keys(keys: pa.Array) -> pa.Array:
    keys = _binary(keys, "key", "binary or string")
    tagged = _joined(_lengths(keys, b"\x0a"), keys)
    return pc.if_else(keys.is_valid(), tagged, _EMPTY)


def _encoded_headers(headers: pa.Array) -> pa.Array:
    kind = headers.type
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind)
    if pa.types.is_map(kind):
        headers = headers.cast(pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)])))
    elements = headers.flatten() if lists else None
    if elements is None or not pa.types.is_struct(elements.type) or elements.type.num_fields != 2:
        raise MalformedError(
            f"the headers column must be lists of structs of a name (string) and a value (binary), not {kind}"
        )
    names, values = elements.flatten()
    for part, what in ((elements, "header"), (names, "header's name"), (values, "header's value")):
        if part.null_count:
            raise MalformedError(
                f"the headers column has {part.null_count} {what}(s) that are null; filter or fill them first"
            )
    names = _binary(names, "headers", "named by strings")
    values = _binary(values, "headers", "of binary or string values")
    fields = _joined(_field(names, b"\x0a"), _field(values, b"\x12"))
    written = _joined(_lengths(fields, b"\x12"), fields)
    sizes = pc.fill_null(pc.list_value_length(headers), 0).cast(pa.int32())
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(sizes)])
    return pc.binary_join(pa.ListArray.from_arrays(offsets, written), _EMPTY)


def _field(values: pa.Array, tag: bytes) -> pa.Array:
    """Return an encoded field for each value; an empty one is left out, as protobuf does."""
    return pc.if_else(pc.equal(values, _EMPTY), _EMPTY, _joined(_lengths(values, tag), values))


def _lengths(values: pa.Array, tag: bytes) -> pa.Array:
    """Return the tag and the length of each value, as they stand before it."""
    sizes = pc.binary_length(values).dictionary_encode()
    heads = [tag + _varint(size) for size in sizes.dictionary.to_pylist()]
    return pa.array(heads, pa.binary()).take(sizes.indices)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= _SHORT:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _joined(left: pa.Array, right: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(left, right, _EMPTY)


def _binary(column: pa.Array, name: str, wanted: str) -> pa.Array:
    if column.type == pa.binary():
        return column
    kind = column.type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)):
        raise MalformedError(f"the {name} column must be {wanted}, not {kind}")
    return column.cast(pa.binary())


def decode_columns(encoded: pa.Array, *, headers: bool) -> tuple[pa.Array, pa.Array | None]:
    """Return a column of keys and, if wanted, one of headers; both are null where a message has none.

    Raises MalformedError as decode_headers.
    """
    entries = encoded.dictionary_encode()
    read = [decode_headers(entry) for entry in entries.dictionary.to_pylist()]

    def column(values: list[Any], kind: pa.DataType) -> pa.Array:
        return pa.array(values, kind).take(entries.indices)

    return (
        column([key for key, _ in read], KEY),
        column([list(pairs) or None for _, pairs in read], HEADERS) if headers else None,
    )
