"""Values to bytes: MessagePack, with extension types for what it lacks.

The format is MessagePack's (https://github.com/msgpack/msgpack/blob/master/spec.md), each value in its
shortest form. Why its library is not used: docs/decisions/0016-tuples-are-messagepack.md. The extension types
are in `extension.py`.
What arrives equals what was packed, type included: so a subclass, which would arrive as its base, is refused.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any

from tuplewire.topology.serial import extension
from tuplewire.topology.serial.extension import Extension

MAX_DEPTH = 64
"""How deep containers may be nested, the fields themselves being at 1."""

MAX_BYTES = 2**32 - 1
"""The largest text, byte string or extension, and the most items of a container."""

KEY_TYPES = (str, bytes, int, float, bool, type(None))
"""What a dict's keys may be. Others could be made to collide by a sender who wants to stop a receiver."""

_Out = list[bytes]
_Writer = Callable[[Any, _Out, int], None]

_BYTE = [bytes([number]) for number in range(256)]
_B, _H, _I, _Q = (Struct(f">B{size}") for size in "BHIQ")
_b, _h, _i, _q = (Struct(f">B{size}") for size in "bhiq")
_D = Struct(">Bd")


def pack_values(values: Sequence[Any], depth: int = 1) -> bytes:
    """Return values as a MessagePack array.

    Raises ValueError or TypeError, which say what is wrong but not where, for a value that has no form.
    """
    out: _Out = []
    _write_items(values, out, depth)
    return b"".join(out)


def _write_items(values: Sequence[Any], out: _Out, depth: int) -> None:
    _check_depth(depth)
    size = len(values)
    out.append(_BYTE[0x90 | size] if size < 16 else _header(size, 0, 0xDC))
    for value in values:
        write = _WRITERS.get(type(value))
        if write is None:
            _write_other(value, out, depth)
        else:
            write(value, out, depth)


def _check_depth(depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ValueError(f"containers are nested more than {MAX_DEPTH} deep, or contain themselves")


def _header(size: int, tag8: int, tag16: int) -> bytes:
    """Return the header of something larger than the shortest form; tag8 is 0 where there is none."""
    if tag8 and size < 0x100:
        return _B.pack(tag8, size)
    if size < 0x10000:
        return _H.pack(tag16, size)
    if size > MAX_BYTES:
        raise ValueError(f"{size} bytes or items in one value are over the format's limit of {MAX_BYTES}")
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
    for key, item in value.items():
        kind = type(key)
        if kind not in KEY_TYPES or (kind is int and not -(2**63) <= key < 2**64):
            raise TypeError(f"a key of a dict is {_describe(key)}; it may be {_KEY_NAMES}")
        _WRITERS[kind](key, out, depth)
        write = _WRITERS.get(type(item))
        if write is None:
            _write_other(item, out, depth + 1)
        else:
            write(item, out, depth + 1)


def _write_extension(code: int, content: bytes, out: _Out) -> None:
    size = len(content)
    fixed = _FIXED_EXTENSION.get(size)
    out.append(_header(size, 0xC7, 0xC8) if fixed is None else fixed)
    out.append(_BYTE[code])
    out.append(content)


def _write_simple(kind: Extension) -> _Writer:
    def write(value: Any, out: _Out, _depth: int) -> None:
        _write_extension(kind.code, kind.write(value), out)

    return write


def _write_other(value: Any, out: _Out, depth: int) -> None:
    """Write a numpy value, if it is one; numpy is not loaded for it, since somebody made the value."""
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        from tuplewire.topology.serial import arrays

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
    if isinstance(value, bytearray | memoryview):
        return "which has no form in a message: convert it to bytes first"
    return "which has no form in a message: convert it, or plug in a TupleSerializer of your own"


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
_WRITERS.update((kind.type, _write_simple(kind)) for kind in extension.SIMPLE)
