"""Conversion of numpy arrays and scalars to plain values and back. Requires numpy."""

from __future__ import annotations

import re
from math import prod
from typing import Any

import numpy as np

# Numbers, booleans, times, fixed-size strings and bytes. Never objects, because they are pointers or pickles.
_DTYPE = re.compile(
    r"[|<>](?:b1|[iu][1248]|f[248]|c(?:8|16)|[SU][1-9][0-9]{0,7}"
    r"|[mM]8(?:\[(?:[1-9][0-9]{0,3})?(?:Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?)"
)
_MAX_AXES = 32


def write_array(value: np.ndarray[Any, Any]) -> list[Any]:
    """Return dtype, shape and items in C order. Raises TypeError, or ValueError for more than 32 axes."""
    if value.ndim > _MAX_AXES:
        raise ValueError(f"a numpy array of {value.ndim} axes exceeds the limit of {_MAX_AXES}")
    return [_dtype_text(value), list(value.shape), value.tobytes()]


def write_scalar(value: np.generic[Any]) -> list[Any]:
    """Return dtype and item, with the errors of write_array(). Strings and bytes are stored unchanged."""
    if isinstance(value, np.str_):
        return ["U", str(value)]
    if isinstance(value, np.bytes_):
        return ["S", bytes(value)]
    return [_dtype_text(value), value.tobytes()]


def _dtype_text(value: np.ndarray[Any, Any] | np.generic[Any]) -> str:
    if not _DTYPE.fullmatch(value.dtype.str):
        raise TypeError(f"it has the numpy dtype {value.dtype}, which has no form in a message")
    return value.dtype.str


def read_array(content: list[Any]) -> np.ndarray[Any, Any]:
    """Build a writable array from untrusted values of write_array(). Raise ValueError if inconsistent."""
    if len(content) != 3 or not isinstance(content[1], list):
        raise ValueError("a numpy array is dtype, shape and items")
    return _items(*content)


def read_scalar(content: list[Any]) -> Any:
    """Build a scalar from untrusted values of write_scalar(). Raise ValueError if they are inconsistent."""
    if len(content) != 2:
        raise ValueError("a numpy scalar is dtype and item")
    dtype, item = content
    if dtype == "U" and isinstance(item, str):
        return np.str_(item)
    if dtype == "S" and isinstance(item, bytes):
        return np.bytes_(item)
    return _items(dtype, [], item)[()]


def _items(text: Any, shape: list[Any], data: Any) -> np.ndarray[Any, Any]:
    if not isinstance(text, str) or not isinstance(data, bytes) or not _DTYPE.fullmatch(text):
        raise ValueError("a numpy value has a dtype or items that a message cannot carry")
    if len(shape) > _MAX_AXES or not all(type(length) is int and 0 <= length < 2**31 for length in shape):
        raise ValueError("a numpy array's shape is out of range")
    dtype = np.dtype(text)
    if prod(shape) * dtype.itemsize != len(data):
        raise ValueError(f"a numpy array of {text} with shape {shape} does not take {len(data)} bytes")
    flat = np.frombuffer(bytearray(data), dtype)
    if dtype.kind == "b" and (flat.view(np.uint8) > 1).any():
        raise ValueError("a numpy bool is neither 0 nor 1")
    if dtype.kind == "U" and (flat.view(dtype.str[0] + "u4") > 0x10FFFF).any():
        raise ValueError("a string of a numpy array has a character outside Unicode")
    return flat.reshape(shape)
