"""Converts snapshots to values that messages and JSON can carry, and back, by the types of their fields.

Used between the processes of a topology. Owns no state. Thread-safe. A snapshot is a dataclass or a named
tuple, of numbers, strings, ranges, maps, sequences and other snapshots.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

_Snapshot = TypeVar("_Snapshot")


def to_values(snapshot: Any) -> Any:
    """Return a snapshot as lists of values."""
    if is_dataclass(snapshot):
        return [to_values(getattr(snapshot, field.name)) for field in fields(snapshot)]
    if isinstance(snapshot, range):
        return [snapshot.start, snapshot.stop]
    if isinstance(snapshot, Mapping):
        return [[to_values(key), to_values(value)] for key, value in snapshot.items()]
    if isinstance(snapshot, list | tuple):
        return list(map(to_values, snapshot))
    return snapshot


def from_values(kind: type[_Snapshot], values: Any) -> _Snapshot:
    """Return the snapshot of this type that was passed to to_values()."""
    snapshot: _Snapshot = _of(kind, values)
    return snapshot


def _of(kind: Any, value: Any) -> Any:
    if is_dataclass(kind) or hasattr(kind, "_fields"):
        return kind(*map(_of, get_type_hints(kind).values(), value))
    if kind is range:
        return range(*value)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Counter:
        return Counter({_of(arguments[0], key): each for key, each in value})
    if origin is Mapping:
        return {_of(arguments[0], key): _of(arguments[1], each) for key, each in value}
    if origin is Sequence:
        return [_of(arguments[0], each) for each in value]
    if origin is tuple:
        return tuple(value)
    if origin is UnionType:  # a snapshot or None
        return value and _of(arguments[0], value)
    return value
