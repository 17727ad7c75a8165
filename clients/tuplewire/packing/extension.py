"""Extension types for Python types that MessagePack lacks.

Reading treats the bytes as untrusted. Used by packing.py. Owns no state. Thread-safe.
Design: docs/design/topologies.md.

============  ====  ================================================================================
type          code  content
============  ====  ================================================================================
tuple         1     a MessagePack array
int           2     two's complement, big-endian, for values above 64 bits
Decimal       3     its text
datetime      4     year (2 bytes), month, day, hour, minute, second, microsecond (4), fold, time zone
date          5     year (2), month, day
time          6     hour, minute, second, microsecond (4), fold, time zone
timedelta     7     days, seconds, microseconds (4 each)
UUID          8     its 16 bytes
numpy array   9     a MessagePack array: dtype, [length of each axis], the items in C order
numpy scalar  10    a MessagePack array: dtype, the item
============  ====  ================================================================================

A time zone is empty (naive), "o" and the offset from UTC in microseconds (8), or "z" and its name in the IANA
database. Numbers are big-endian.
"""

from __future__ import annotations

import reprlib
import zoneinfo
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Context, Decimal, InvalidOperation
from functools import cache
from operator import attrgetter
from struct import Struct, error
from typing import Any
from uuid import UUID

TUPLE = 1
BIG_INT = 2
ARRAY = 9
SCALAR = 10

_OFFSET = Struct(">q")
_MICROSECOND = timedelta(microseconds=1)
_STRICT = Context(traps=[InvalidOperation])


@dataclass(frozen=True, slots=True)
class Extension:
    """The functions that write and read one type. `read` raises ValueError for invalid content."""

    type: type
    code: int
    write: Callable[[Any], bytes]
    read: Callable[[bytes], Any]


def write_int(value: int) -> bytes:
    """Return an integer as two's complement, in at most one byte more than necessary."""
    return value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)


def _read_decimal(content: bytes) -> Decimal:
    try:
        return Decimal(content.decode("ascii"), _STRICT)
    except InvalidOperation as cause:
        raise ValueError("a Decimal's text is not a number") from cause


def _of_numbers(kind: type, code: int, layout: Struct, names: str, *, zoned: bool = False) -> Extension:
    """Return the extension for a type made from these numbers; with a time zone, the last one is `fold`."""
    numbers_of = attrgetter(*names.split())

    def write(value: Any) -> bytes:
        return layout.pack(*numbers_of(value)) + (_write_zone(value.tzinfo) if zoned else b"")

    def read(content: bytes) -> Any:
        end = layout.size if zoned else len(content)
        numbers = _unpack(layout, content[:end])
        try:
            if not zoned:
                return kind(*numbers)
            value = kind(*numbers[:-1], _read_zone(content[end:]))
            return value.replace(fold=numbers[-1]) if numbers[-1] else value  # faster than an argument
        except OverflowError as cause:
            raise ValueError(f"a {kind.__name__} is out of range: {cause}") from cause

    return Extension(kind, code, write, read)


def _write_zone(zone: tzinfo | None) -> bytes:
    if zone is None:
        return b""
    if type(zone) is timezone:
        return b"o" + _OFFSET.pack(zone.utcoffset(None) // _MICROSECOND)
    if type(zone) is zoneinfo.ZoneInfo and zone.key in _known_zones():
        return b"z" + zone.key.encode()
    raise ValueError(
        f"its time zone {zone!r} has no form in a message: "
        "use datetime.timezone, or a zoneinfo.ZoneInfo by its name"
    )


def _read_zone(content: bytes) -> tzinfo | None:
    if not content:
        return None
    kind, rest = content[:1], content[1:]
    if kind == b"o":
        return timezone(_unpack(_OFFSET, rest)[0] * _MICROSECOND)
    name = rest.decode()
    # Check the name before ZoneInfo opens it as a file: the name comes from untrusted bytes.
    if kind != b"z" or name not in _known_zones():
        raise ValueError(
            f"time zone {reprlib.repr(name)} is not known here; is the package tzdata installed and current?"
        )
    return zoneinfo.ZoneInfo(name)


@cache
def _known_zones() -> frozenset[str]:
    return frozenset(zoneinfo.available_timezones())


def _unpack(form: Struct, content: bytes) -> tuple[Any, ...]:
    try:
        return form.unpack(content)
    except error as cause:
        raise ValueError(f"{len(content)} bytes where {form.size} are expected") from cause


SIMPLE_EXTENSIONS = (
    Extension(Decimal, 3, lambda value: str(value).encode("ascii"), _read_decimal),
    _of_numbers(
        datetime, 4, Struct(">HBBBBBiB"), "year month day hour minute second microsecond fold", zoned=True
    ),
    _of_numbers(date, 5, Struct(">HBB"), "year month day"),
    _of_numbers(time, 6, Struct(">BBBiB"), "hour minute second microsecond fold", zoned=True),
    _of_numbers(timedelta, 7, Struct(">iII"), "days seconds microseconds"),
    Extension(UUID, 8, attrgetter("bytes"), lambda content: UUID(bytes=content)),
)
"""The extensions with content that is not MessagePack."""
