"""Conversion of Python values to MessagePack bytes and back, with extension types (extension.py).

The format is https://github.com/msgpack/msgpack/blob/master/spec.md, with each value in its shortest form. A
decoded value equals the packed one and has the same type, so subclasses are refused.

Bytes are untrusted. No memory is allocated for a size that is only claimed: a list grows with the items that
are read, and only existing bytes are copied. Containers are nested at most MAX_DEPTH deep.

Used by the serializer and control messages of topologies, by teams, and by the command `tap`. Owns no state.
Thread-safe. Design: docs/design/topologies.md, with the reason for not using the library msgpack.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any

from tuplewire.packing import extension
from tuplewire.packing.extension import Extension

MAX_DEPTH = 64
"""The maximum nesting of containers. The array of all values has depth 1."""

MAX_BYTES = 2**32 - 1
"""The maximum bytes of a string, byte string or extension, and the maximum number of items in a container."""

KEY_TYPES = (str, bytes, int, float, bool, type(None))
"""The types of a dict's keys. With other types, a hostile sender could cause hash collisions."""
MAX_NUMERIC_KEYS = 4096
"""Limit for the numbers among a dict's keys, which can collide too: 80,000 of them would take 9 s to read."""
_NUMBERS = frozenset([int, float])

_Out = list[bytes]
_Writer = Callable[[Any, _Out, int], None]

_BYTE = [bytes([number]) for number in range(256)]
_B, _H, _I, _Q = (Struct(f">B{size}") for size in "BHIQ")
_b, _h, _i, _q = (Struct(f">B{size}") for size in "bhiq")
_D = Struct(">Bd")


def pack_values(values: Sequence[Any], depth: int = 1) -> bytes:
    """Return values as a MessagePack array. Raises ValueError or TypeError for an unsupported value."""
    out: _Out = []
    _write_items(values, out, depth)
    return b"".join(out)


def _write_items(values: Sequence[Any], out: _Out, depth: int) -> None:
    _check_depth(depth)
    size = len(values)
    out.append(_BYTE[0x90 | size] if size < 16 else _header(size, 0, 0xDC))
    for value in values:
        _WRITERS.get(type(value), _write_other)(value, out, depth)


def _check_depth(depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ValueError(f"containers are nested more than {MAX_DEPTH} deep, or contain themselves")


def _header(size: int, tag8: int, tag16: int) -> bytes:
    """Return the header for a size above the shortest form. `tag8` is 0 if the type has no 8-bit form."""
    if tag8 and size < 0x100:
        return _B.pack(tag8, size)
    if size < 0x10000:
        return _H.pack(tag16, size)
    if size > MAX_BYTES:
        raise ValueError(f"{size} bytes or items in one value exceed the format's limit of {MAX_BYTES}")
    return _I.pack(tag16 + 1, size)


def _write_int(value: int, out: _Out, _depth: int) -> None:
    if -0x20 <= value < 0x80:
        out.append(_BYTE[value & 0xFF])
    elif value > 0:
        if value < 0x100:
            out.append(_B.pack(0xCC, value))
        elif value < 0x10000:
            out.append(_H.pack(0xCD, value))
        elif value < 0x100000000:
            out.append(_I.pack(0xCE, value))
        elif value < 0x10000000000000000:
            out.append(_Q.pack(0xCF, value))
        else:
            _write_extension(extension.BIG_INT, extension.write_int(value), out)
    elif value >= -0x80:
        out.append(_b.pack(0xD0, value))
    elif value >= -0x8000:
        out.append(_h.pack(0xD1, value))
    elif value >= -0x80000000:
        out.append(_i.pack(0xD2, value))
    elif value >= -0x8000000000000000:
        out.append(_q.pack(0xD3, value))
    else:
        _write_extension(extension.BIG_INT, extension.write_int(value), out)


def _write_str(value: str, out: _Out, _depth: int) -> None:
    raw = value.encode()
    size = len(raw)
    out.append(_BYTE[0xA0 | size] if size < 32 else _header(size, 0xD9, 0xDA))
    out.append(raw)


def _write_bytes(value: bytes, out: _Out, _depth: int) -> None:
    out.append(_header(len(value), 0xC4, 0xC5))
    out.append(value)


def _write_dict(value: dict[Any, Any], out: _Out, depth: int) -> None:
    _check_depth(depth + 1)
    size = len(value)
    out.append(_BYTE[0x80 | size] if size < 16 else _header(size, 0, 0xDE))
    if size > MAX_NUMERIC_KEYS and sum(type(key) in _NUMBERS for key in value) > MAX_NUMERIC_KEYS:
        raise TypeError(f"a dict has more than {MAX_NUMERIC_KEYS} keys that are numbers; use a list of pairs")
    for key, item in value.items():
        kind = type(key)
        if kind not in KEY_TYPES or (kind is int and not -(2**63) <= key < 2**64):
            raise TypeError(f"a key of a dict is {_describe(key)}; it may be {_KEY_NAMES}")
        _WRITERS[kind](key, out, depth)
        _WRITERS.get(type(item), _write_other)(item, out, depth + 1)


def _write_extension(code: int, content: bytes, out: _Out) -> None:
    size = len(content)
    fixed = _FIXED_EXTENSION.get(size)
    out.append(_header(size, 0xC7, 0xC8) if fixed is None else fixed)
    out.append(_BYTE[code])
    out.append(content)


def _write_simple(kind: Extension) -> _Writer:
    return lambda value, out, _depth: _write_extension(kind.code, kind.write(value), out)


def _write_other(value: Any, out: _Out, depth: int) -> None:
    """Write a numpy value, or raise TypeError for any other type."""
    # The caller has imported numpy if the value is of numpy, so this module does not import it.
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        from tuplewire.packing import arrays

        if type(value) is numpy.ndarray:
            _write_extension(extension.ARRAY, pack_values(arrays.write_array(value), depth + 1), out)
            return
        if isinstance(value, numpy.generic):
            _write_extension(extension.SCALAR, pack_values(arrays.write_scalar(value), depth + 1), out)
            return
    raise TypeError(f"it is {_describe(value)}, {_hint(value)}")


def _describe(value: Any) -> str:
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"of type {name}"


def _hint(value: Any) -> str:
    for base in _WRITERS:
        if isinstance(value, base):
            return f"which would arrive as a plain {base.__name__}: convert it first"
    to_bytes = " to bytes" if isinstance(value, bytearray | memoryview) else ""
    return f"which has no form in a message: convert it{to_bytes} first"


_FIXED_EXTENSION = {1: b"\xd4", 2: b"\xd5", 4: b"\xd6", 8: b"\xd7", 16: b"\xd8"}
_KEY_NAMES = "str, bytes, int of 64 bits, float, bool or None"

_WRITERS: dict[type, _Writer] = {
    type(None): lambda _value, out, _depth: out.append(b"\xc0"),
    bool: lambda value, out, _depth: out.append(b"\xc3" if value else b"\xc2"),
    int: _write_int,
    float: lambda value, out, _depth: out.append(_D.pack(0xCB, value)),
    str: _write_str,
    bytes: _write_bytes,
    list: lambda value, out, depth: _write_items(value, out, depth + 1),
    tuple: lambda value, out, depth: _write_extension(extension.TUPLE, pack_values(value, depth + 1), out),
    dict: _write_dict,
}
_WRITERS.update((kind.type, _write_simple(kind)) for kind in extension.SIMPLE_EXTENSIONS)


# --- reading ---------------------------------------------------------------------------------------------

READ_ERRORS = (ValueError, IndexError, struct.error)
"""The exceptions for malformed bytes. IndexError and struct.error mean that the bytes end too early."""

_Reader = Callable[[bytes, int, int], tuple[Any, int]]
_SizedReader = Callable[[bytes, int, int, int], tuple[Any, int]]


def read_value(data: bytes, at: int, depth: int = 1) -> tuple[Any, int]:
    """Return a value and the position after it; `depth`: its container's. Raises READ_ERRORS."""
    return _READERS[data[at]](data, at + 1, depth)


def read_array_size(data: bytes, at: int) -> tuple[int, int]:
    """Return the claimed number of items of an array, and the position of the first. Raises READ_ERRORS."""
    tag = data[at]
    if 0x90 <= tag < 0xA0:
        return tag & 0x0F, at + 1
    if tag == 0xDC:
        return _SIZE_16.unpack_from(data, at + 1)[0], at + 3
    if tag == 0xDD:
        return _SIZE_32.unpack_from(data, at + 1)[0], at + 5
    raise ValueError(f"the tag 0x{tag:02x} where an array should begin")


def read_items(data: bytes, at: int, size: int, depth: int) -> tuple[list[Any], int]:
    """Return `size` values at a depth, and the position after them. Raises READ_ERRORS."""
    if depth > MAX_DEPTH:
        raise ValueError(f"containers are nested more than {MAX_DEPTH} deep")
    items: list[Any] = []
    append = items.append
    readers = _READERS
    for _ in range(size):
        tag = data[at]
        at += 1
        if tag < 0x80:  # a small int; most values are small ints or short strings (below)
            append(tag)
        elif 0xA0 <= tag < 0xC0:
            end = at + (tag & 0x1F)
            append(data[at:end].decode())
            at = end
        else:
            item, at = readers[tag](data, at, depth)
            append(item)
    if at > len(data):  # a short string exceeded the end; nothing was read after it
        raise IndexError
    return items, at


def _read_bytes(data: bytes, at: int, size: int, _depth: int) -> tuple[bytes, int]:
    end = at + size
    if end > len(data):
        raise IndexError
    return data[at:end], end


def _read_str(data: bytes, at: int, size: int, depth: int) -> tuple[str, int]:
    raw, end = _read_bytes(data, at, size, depth)
    return raw.decode(), end


def _read_list(data: bytes, at: int, size: int, depth: int) -> tuple[list[Any], int]:
    return read_items(data, at, size, depth + 1)


def _read_dict(data: bytes, at: int, size: int, depth: int) -> tuple[dict[Any, Any], int]:
    depth += 1
    if depth > MAX_DEPTH:
        raise ValueError(f"containers are nested more than {MAX_DEPTH} deep")
    items: dict[Any, Any] = {}
    numbers = 0
    for _ in range(size):
        if data[at] not in _KEY_TAGS:
            raise ValueError(f"the tag 0x{data[at]:02x} in place of a dict's key")
        key, at = read_value(data, at, depth)
        if size > MAX_NUMERIC_KEYS and type(key) in _NUMBERS:
            numbers += 1
            if numbers > MAX_NUMERIC_KEYS:
                raise ValueError(f"a dict with more than {MAX_NUMERIC_KEYS} keys that are numbers")
        items[key], at = read_value(data, at, depth)
    if len(items) != size:  # keys such as 1 and True are equal, too
        raise ValueError("a dict with one key twice")
    return items, at


def _read_extension(data: bytes, at: int, size: int, depth: int) -> tuple[Any, int]:
    code = data[at]
    content, end = _read_bytes(data, at + 1, size, depth)
    simple = _SIMPLE.get(code)
    if simple is not None:
        return simple(content), end
    compound = _COMPOUND.get(code)
    if compound is None:
        raise ValueError(f"the extension type {code}, which is not known")
    count, start = read_array_size(content, 0)
    items, after = read_items(content, start, count, depth + 1)
    if after != size:
        raise ValueError(f"{size - after} bytes too many in an extension of type {code}")
    return compound(items), end


def _arrays() -> Any:
    try:
        from tuplewire.packing import arrays
    except ImportError as error:
        raise ValueError("a numpy value, and numpy is not installed here") from error
    return arrays


def _read_unused(_data: bytes, _at: int, _depth: int) -> tuple[Any, int]:
    raise ValueError("the tag 0xc1, which MessagePack does not use")


def _constant(value: Any) -> _Reader:
    return lambda _data, at, _depth: (value, at)


def _number(form: str) -> _Reader:
    layout = Struct(f">{form}")
    unpack_from, width = layout.unpack_from, layout.size
    return lambda data, at, _depth: (unpack_from(data, at)[0], at + width)


def _fixed(size: int, read: _SizedReader) -> _Reader:
    return lambda data, at, depth: read(data, at, size, depth)


def _sized(layout: Struct, read: _SizedReader) -> _Reader:
    unpack_from, width = layout.unpack_from, layout.size
    return lambda data, at, depth: read(data, at + width, unpack_from(data, at)[0], depth)


_SIZE_8, _SIZE_16, _SIZE_32 = (Struct(f">{form}") for form in "BHI")

_SIMPLE: dict[int, Callable[[bytes], Any]] = {
    extension.BIG_INT: lambda content: int.from_bytes(content, "big", signed=True),
    **{kind.code: kind.read for kind in extension.SIMPLE_EXTENSIONS},
}
_COMPOUND: dict[int, Callable[[list[Any]], Any]] = {
    extension.TUPLE: tuple,
    extension.ARRAY: lambda items: _arrays().read_array(items),
    extension.SCALAR: lambda items: _arrays().read_scalar(items),
}

# The reader of each tag, from 0 to 255.
_READERS: list[_Reader] = [
    *map(_constant, range(0x80)),
    *(_fixed(size, _read_dict) for size in range(16)),
    *(_fixed(size, _read_list) for size in range(16)),
    *(_fixed(size, _read_str) for size in range(32)),
    _constant(None),
    _read_unused,
    _constant(False),
    _constant(True),
    *(_sized(layout, _read_bytes) for layout in (_SIZE_8, _SIZE_16, _SIZE_32)),
    *(_sized(layout, _read_extension) for layout in (_SIZE_8, _SIZE_16, _SIZE_32)),
    *map(_number, "fdBHIQbhiq"),
    *(_fixed(2**power, _read_extension) for power in range(5)),
    *(_sized(layout, _read_str) for layout in (_SIZE_8, _SIZE_16, _SIZE_32)),
    *(_sized(layout, _read_list) for layout in (_SIZE_16, _SIZE_32)),
    *(_sized(layout, _read_dict) for layout in (_SIZE_16, _SIZE_32)),
    *map(_constant, range(-0x20, 0)),
]

# The tags of KEY_TYPES: all tags except those of containers and extensions.
_KEY_TAGS = frozenset(range(0x100)).difference(
    range(0x80, 0xA0), range(0xC7, 0xCA), range(0xD4, 0xD9), range(0xDC, 0xE0)
)
