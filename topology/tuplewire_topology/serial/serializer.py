"""Serializes tuples, and converts snapshots to values that messages and JSON can carry.

Used by the transfer between processes, by collectors to detect changed values, and by reports. Owns caches of
headers. Thread-safe. Source: Storm's `KryoTupleSerializer` and `KryoTupleDeserializer`.
Design: docs/design/topologies.md.
"""

from __future__ import annotations

import reprlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from tuplewire.errors import MalformedTupleError, UnsupportedValueError
from tuplewire.packing.packing import READ_ERRORS, pack_values, read_array_size, read_items, read_value
from tuplewire.values.group import check_task
from tuplewire_topology.authoring.description import Topology
from tuplewire_topology.authoring.tuples import NO_ROOTS, Roots, Tuple, TupleSource


class TupleSerializer:
    """The form of tuples: a MessagePack array of source, roots and values, readable in other languages.

    The source is "task:component:stream", the roots a flat array of their pairs, and the values an array.
    A value may be None, bool, int, float, str, bytes, list, tuple, dict, Decimal, UUID, datetime, date, time,
    timedelta, or a numpy array or scalar. Its type is preserved; see tuplewire/packing/packing.py. Reading
    allocates memory in proportion to the payload's real size, and executes nothing.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self._headers: dict[str, bytes] = {}
        # The last values, which neighbours often share. Each tuple is replaced as a whole, for other threads.
        self._last_written: tuple[Roots, bytes] = (NO_ROOTS, _PACKED_NO_ROOTS)
        self._last_read: tuple[bytes, TupleSource, Roots] | None = None
        # Bounded: only sources of the topology are stored.
        self._sources: dict[str, TupleSource] = {}

    def serialize(self, message: Tuple) -> bytes:
        """Return a tuple as bytes. Raises UnsupportedValueError, naming the field, for other types."""
        key = message.source.wire_id
        try:
            head = self._headers.get(key)
            if head is None:
                head = self._headers[key] = _ARRAY_OF_THREE + pack_values([key])[1:]
            roots, packed = self._last_written
            if message.roots is not roots:
                roots = message.roots
                packed = pack_values([part for root in roots for part in root])
                self._last_written = roots, packed
            return head + packed + pack_values(message.values)
        except (TypeError, ValueError) as error:
            raise UnsupportedValueError(f"a tuple from {key} cannot be sent: {_bad_part(message)}") from error

    def deserialize(self, payload: bytes) -> Tuple:
        """Parse untrusted bytes. Raises MalformedTupleError, and no other error, if they are invalid."""
        where = "its source"
        try:
            last = self._last_read
            if last is not None and payload.startswith(last[0]):  # no value is a prefix of another
                header, source, roots = last
                at = len(header)
            else:
                if payload[:1] != _ARRAY_OF_THREE:
                    raise ValueError("does not begin as a tuple does")
                key, at = read_value(payload, 1)
                source = self._source(key)
                where = "its message id"
                size, at = read_array_size(payload, at)
                roots = NO_ROOTS
                if size:
                    flat, at = read_items(payload, at, size, 1)
                    roots = _parse_roots(flat)
                if at <= _MAX_CACHED_BYTES:
                    self._last_read = payload[:at], source, roots
            where = "its values"
            size, at = read_array_size(payload, at)
            fields = source.stream.fields
            if size != len(fields):
                raise ValueError(f"{size} of them, where the stream has {len(fields)} field(s)")
            where = _FIELDS
            start = at
            values, at = read_items(payload, start, size, 1)
            where = "its end"
            if at != len(payload):
                raise ValueError(f"{len(payload) - at} byte(s) too many")
        except READ_ERRORS as error:
            if where is _FIELDS:
                where = _bad_field(payload, start, fields)
            problem = str(error) if isinstance(error, ValueError) else "ends too early"
            raise MalformedTupleError(f"{len(payload)} bytes are not a tuple: {where}: {problem}") from error
        return Tuple(values, source, roots)

    def _source(self, wire_id: Any) -> TupleSource:
        if type(wire_id) is not str:
            raise ValueError(f"{type(wire_id).__name__} in place of text")
        source = self._sources.get(wire_id)
        if source is None:
            task, _, _ = wire_id.partition(":")
            # int() would also accept signs, spaces, and numbers that take long to convert.
            if not (task.isascii() and task.isdecimal() and len(task) <= _MAX_TASK_DIGITS):
                raise ValueError(f"{reprlib.repr(wire_id)} does not begin with a task")
            component = self.topology.component_of(int(task))
            source = self.topology.source(int(task), wire_id[len(task) + len(component.id) + 2 :])
            if source.wire_id != wire_id:  # from another topology
                raise ValueError(f"{reprlib.repr(wire_id)}, but task {task} is one of {component.id!r}")
            self._sources[wire_id] = source
        return source


def _parse_roots(flat: list[Any]) -> Roots:
    tasks, ids = flat[::2], flat[1::2]
    if len(tasks) != len(ids) or not all(type(task) is int for task in tasks):
        raise ValueError("no pairs of a task and an id")
    try:
        hash(tuple(ids))
    except TypeError as error:
        raise ValueError(f"an id that cannot be looked up: {error}") from error
    return tuple(zip(map(check_task, tasks), ids, strict=True))


def _bad_field(payload: bytes, at: int, fields: Sequence[str]) -> str:
    """Describe the first field that cannot be read, with its position."""
    for number, field in enumerate(fields, 1):
        try:
            _, at = read_items(payload, at, 1, 1)
        except READ_ERRORS:
            return f"field {field!r} ({number} of {len(fields)}, at byte {at})"
    raise AssertionError("every field can be read alone")


def _bad_part(message: Tuple) -> str:
    """Return the first part of a tuple that cannot be packed, with the reason."""
    parts = [(f"field {name!r}", value) for name, value in zip(message.fields, message.values, strict=False)]
    for name, part in [("its message id", message.roots), *parts]:
        try:
            pack_values([part])
        except (TypeError, ValueError) as error:
            return f"{name}: {error}"
    raise AssertionError("every part can be packed alone")


_ARRAY_OF_THREE = b"\x93"  # an array of three
_PACKED_NO_ROOTS = b"\x90"
_MAX_TASK_DIGITS = 10
_MAX_CACHED_BYTES = 256
"""The maximum header size in the cache, so that senders do not control its memory."""
_FIELDS = "its fields"


_Snapshot = TypeVar("_Snapshot")


def to_lists(snapshot: Any) -> Any:
    """Return a snapshot as lists of values."""
    if is_dataclass(snapshot):
        return [to_lists(getattr(snapshot, field.name)) for field in fields(snapshot)]
    if isinstance(snapshot, range):
        return [snapshot.start, snapshot.stop]
    if isinstance(snapshot, Mapping):
        return [[to_lists(key), to_lists(value)] for key, value in snapshot.items()]
    if isinstance(snapshot, list | tuple):
        return list(map(to_lists, snapshot))
    return snapshot


def from_lists(kind: type[_Snapshot], values: Any) -> _Snapshot:
    """Return the snapshot of this type that was passed to to_lists()."""
    return cast("_Snapshot", _rebuild(kind, values))


def _rebuild(kind: Any, value: Any) -> Any:
    if is_dataclass(kind) or hasattr(kind, "_fields"):
        return kind(*map(_rebuild, get_type_hints(kind).values(), value))
    if kind is range:
        return range(*value)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Counter:
        return Counter({_rebuild(arguments[0], key): each for key, each in value})
    if origin is Mapping:
        return {_rebuild(arguments[0], key): _rebuild(arguments[1], each) for key, each in value}
    if origin is Sequence:
        return [_rebuild(arguments[0], each) for each in value]
    if origin is tuple:
        return tuple(value)
    if origin is UnionType:  # a snapshot or None
        return value and _rebuild(arguments[0], value)
    return value
