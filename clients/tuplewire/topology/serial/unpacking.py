"""Values from untrusted bytes: MessagePack, with the extension types of `extension.py`.

Nothing is allocated by a size that the bytes only claim: a list grows as its items are read, and what is
copied is there. Containers are nested at most MAX_DEPTH deep.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from tuplewire.topology.serial import extension
from tuplewire.topology.serial.packing import MAX_DEPTH

FAULTS = (ValueError, IndexError, struct.error)
"""What reading raises for malformed bytes; an IndexError or struct.error means that they end too early."""

_Reader = Callable[[bytes, int, int], tuple[Any, int]]
_SizedReader = Callable[[bytes, int, int, int], tuple[Any, int]]


def read_value(data: bytes, at: int, depth: int = 1) -> tuple[Any, int]:
    """Return the value that begins at a position, and the position after it; raises one of FAULTS.

    depth: how deep the container is that the value is in.
    """
    return _READERS[data[at]](data, at + 1, depth)


def read_array_size(data: bytes, at: int) -> tuple[int, int]:
    """Return how many items an array claims, and where the first begins; raises one of FAULTS."""
    tag = data[at]
    if 0x90 <= tag < 0xA0:
        return tag & 0x0F, at + 1
    if tag == 0xDC:
        return _SIZE_16.unpack_from(data, at + 1)[0], at + 3
    if tag == 0xDD:
        return _SIZE_32.unpack_from(data, at + 1)[0], at + 5
    raise ValueError(f"the tag 0x{tag:02x} where an array should begin")


def read_items(data: bytes, at: int, size: int, depth: int) -> tuple[list[Any], int]:
    """Return so many values, at a depth, and the position after them; raises one of FAULTS."""
    if depth > MAX_DEPTH:
        raise ValueError(f"containers are nested more than {MAX_DEPTH} deep")
    items: list[Any] = []
    append = items.append
    readers = _READERS
    for _ in range(size):
        tag = data[at]
        at += 1
        if tag < 0x80:  # a small int; this and a short text, below, are most of all values
            append(tag)
        elif 0xA0 <= tag < 0xC0:
            end = at + (tag & 0x1F)
            append(data[at:end].decode())
            at = end
        else:
            item, at = readers[tag](data, at, depth)
            append(item)
    if at > len(data):  # a short text went over the end; nothing was read after it
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
    for _ in range(size):
        if data[at] not in _KEY_TAGS:
            raise ValueError(f"the tag 0x{data[at]:02x} in place of a dict's key")
        key, at = read_value(data, at, depth)
        items[key], at = read_value(data, at, depth)
    if len(items) != size:
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
        from tuplewire.topology.serial import arrays
    except ImportError as error:
        raise ValueError("a numpy value, and numpy is not installed here") from error
    return arrays


def _read_unused(_data: bytes, _at: int, _depth: int) -> tuple[Any, int]:
    raise ValueError("the tag 0xc1, which MessagePack does not use")


def _constant(value: Any) -> _Reader:
    return lambda _data, at, _depth: (value, at)


def _number(form: str) -> _Reader:
    layout = struct.Struct(f">{form}")
    unpack_from, width = layout.unpack_from, layout.size
    return lambda data, at, _depth: (unpack_from(data, at)[0], at + width)


def _fixed(size: int, read: _SizedReader) -> _Reader:
    return lambda data, at, depth: read(data, at, size, depth)


def _sized(layout: struct.Struct, read: _SizedReader) -> _Reader:
    unpack_from, width = layout.unpack_from, layout.size
    return lambda data, at, depth: read(data, at + width, unpack_from(data, at)[0], depth)


_SIZE_8, _SIZE_16, _SIZE_32 = (struct.Struct(f">{form}") for form in "BHI")

_SIMPLE: dict[int, Callable[[bytes], Any]] = {
    extension.BIG_INT: extension.read_int,
    **{kind.code: kind.read for kind in extension.SIMPLE},
}
_COMPOUND: dict[int, Callable[[list[Any]], Any]] = {
    extension.TUPLE: tuple,
    extension.ARRAY: lambda items: _arrays().read_array(items),
    extension.SCALAR: lambda items: _arrays().read_scalar(items),
}

# By tag, from 0 to 255.
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

# Those of packing.KEY_TYPES: all but containers and extensions.
_KEY_TAGS = frozenset(range(0x100)).difference(
    range(0x80, 0xA0), range(0xC7, 0xCA), range(0xD4, 0xD9), range(0xDC, 0xE0)
)
