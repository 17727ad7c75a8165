"""A hash that every process and release agrees on, unlike Python's hash()."""

from __future__ import annotations

import hashlib
from decimal import Decimal
from fractions import Fraction
from typing import Any

from tuplewire.errors import ConfigError

Field = str | bytes | float | Decimal | Fraction | None
Key = Field | tuple[Field, ...]
"""The value of a field, or the values of several. Numbers are of any type, numpy's too."""


def stable_hash(key: Key) -> int:
    """Return 64 bits that are the same in every process and release, unlike Python's hash().

    Keys that are equal have equal hashes, as with Python's: 1, 1.0 and True are one key. Others differ
    (1 and "1"), as do tuples that only look alike once joined. Raises ConfigError for what is no key.
    """
    return int.from_bytes(hashlib.blake2b(_canonical(key), digest_size=8).digest(), "big")


def _canonical(key: Any) -> bytes:
    if isinstance(key, str):
        return b"s" + key.encode("utf-8", "surrogatepass")
    if isinstance(key, bytes):
        return b"b" + key
    if key is None:
        return b"n"
    if isinstance(key, int):
        return b"i%d" % key
    if isinstance(key, tuple):
        parts = list(map(_canonical, key))
        return b"t" + b"".join(b"%d:%b" % (len(part), part) for part in parts)
    if isinstance(key, float | Decimal | Fraction):
        return _number(key)
    if hasattr(key, "dtype") and getattr(key, "ndim", None) == 0:  # numpy's, which nobody need have
        return _canonical(key.item())
    kind = type(key).__name__
    raise ConfigError(f"a grouping's key is str, bytes, a number, None or a tuple of these, not {kind}")


def _number(key: float | Decimal | Fraction) -> bytes:
    try:
        numerator, denominator = key.as_integer_ratio()
    except (OverflowError, ValueError):  # infinite, or not a number
        return b"f%b" % str(float(key)).encode()
    return b"i%d" % numerator if denominator == 1 else b"q%d/%d" % (numerator, denominator)
