"""A hash that every process and release agrees on, unlike Python's hash()."""

from __future__ import annotations

import hashlib

from tuplewire.errors import ConfigError

Field = str | bytes | int | None
Key = Field | tuple[Field, ...]
"""The value of a field, or the values of several."""


def stable_hash(key: Key) -> int:
    """Return 64 bits that are the same in every process and release, unlike Python's hash().

    Keys of different types differ (1 and "1"), as do tuples that only look alike once joined.
    """
    return int.from_bytes(hashlib.blake2b(_canonical(key), digest_size=8).digest(), "big")


def _canonical(key: Key) -> bytes:
    if isinstance(key, str):
        return b"s" + key.encode("utf-8", "surrogatepass")
    if isinstance(key, bytes):
        return b"b" + key
    if key is None:
        return b"n"
    if isinstance(key, int) and not isinstance(key, bool):
        return b"i%d" % key
    if isinstance(key, tuple):
        parts = list(map(_canonical, key))
        return b"t" + b"".join(b"%d:%b" % (len(part), part) for part in parts)
    kind = type(key).__name__
    raise ConfigError(f"a grouping's key is str, bytes, int, None or a tuple of these, not {kind}")
