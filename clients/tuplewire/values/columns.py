"""Columns of byte strings: lengths of four little-endian bytes each, and the concatenated strings.

The code needs a little-endian host, because it reads lengths in the byte order of the host.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise


@lru_cache(1 << 12)
def varint(value: int) -> bytes:
    """Return protobuf's base-128 encoding of a non-negative number."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def split_column(lengths: bytes, data: bytes) -> list[bytes]:
    """Return the values of a column."""
    sizes = array("I", lengths)
    count = len(sizes)
    if count == 1:
        return [data]
    size = sizes[0] if count else 0
    # True if all lengths are the same: a comparison of memory is faster than a loop.
    if size and size * count == len(data) and lengths[4:] == lengths[:-4]:
        return [value for (value,) in struct.iter_unpack(f"{size}s", data)]
    values = []
    start = 0
    for length in sizes:
        end = start + length
        values.append(data[start:end])
        start = end
    return values


def cut_column(lengths: bytes, data: bytes, bounds: Sequence[int]) -> list[tuple[bytes, bytes]]:
    """Return the lengths and data of a column between consecutive bounds. An absent column stays absent."""
    if not lengths:
        return [(b"", b"")] * (len(bounds) - 1)
    sizes = array("I", lengths)
    end = sum(sizes[: bounds[0]])
    pieces = []
    for start, stop in pairwise(bounds):
        begin, end = end, end + sum(sizes[start:stop])
        pieces.append((lengths[4 * start : 4 * stop], data[begin:end]))
    return pieces
