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
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from tuplewire.errors import MalformedTupleError, UnsupportedValueError
from tuplewire.packing.packing import FAULTS, pack_values, read_array_size, read_items, read_value
from tuplewire.values.group import check_task
from tuplewire_topology.authoring.description import Topology
from tuplewire_topology.authoring.tuples import UNANCHORED, MessageId, Tuple, TupleSource


class TupleSerializer:
    """The form of tuples: a MessagePack array of source, message id and values, readable in other languages.

    The source is "task:component:stream", the message id a flat array of its pairs, and the values an array.
    A value may be None, bool, int, float, str, bytes, list, tuple, dict, Decimal, UUID, datetime, date, time,
    timedelta, or a numpy array or scalar. Its type is preserved; see tuplewire/packing/packing.py. Reading
    allocates memory in proportion to the payload's real size, and executes nothing.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self._heads: dict[str, bytes] = {}
        # The last values, which neighbours often share. Each tuple is replaced as a whole, for other threads.
        self._written: tuple[MessageId, bytes] = (UNANCHORED, _NO_ID)
        self._read: tuple[bytes, TupleSource, MessageId] | None = None
        # Bounded: only sources of the topology are stored.
        self._sources: dict[str, TupleSource] = {}

    def serialize(self, message: Tuple) -> bytes:
        """Return a tuple as bytes. Raises UnsupportedValueError, naming the field, for other types."""
        key = message.source.key
        try:
            head = self._heads.get(key)
            if head is None:
                head = self._heads[key] = _HEAD + pack_values([key])[1:]
            message_id, packed = self._written
            if message.message_id is not message_id:
                message_id = message.message_id
                packed = pack_values([part for root in message_id for part in root])
                self._written = message_id, packed
            return head + packed + pack_values(message.values)
        except (TypeError, ValueError) as error:
            raise UnsupportedValueError(
                f"a tuple from {key} cannot be sent: {_unpackable(message)}"
            ) from error

    def deserialize(self, payload: bytes) -> Tuple:
        """Parse untrusted bytes. Raises MalformedTupleError, and no other error, if they are invalid."""
        where = "its source"
        try:
            known = self._read
            if known is not None and payload.startswith(known[0]):  # no value is a prefix of another
                begin, source, message_id = known
                at = len(begin)
            else:
                if payload[:1] != _HEAD:
                    raise ValueError("does not begin as a tuple does")
                key, at = read_value(payload, 1)
                source = self._source(key)
                where = "its message id"
                size, at = read_array_size(payload, at)
                message_id = UNANCHORED
                if size:
                    flat, at = read_items(payload, at, size, 1)
                    message_id = _message_id(flat)
                if at <= _KEPT_BYTES:
                    self._read = payload[:at], source, message_id
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
        except FAULTS as error:
            if where is _FIELDS:
                where = _first_fault(payload, start, fields)
            problem = str(error) if isinstance(error, ValueError) else "ends too early"
            raise MalformedTupleError(f"{len(payload)} bytes are not a tuple: {where}: {problem}") from error
        return Tuple(values, source, message_id)

    def _source(self, key: Any) -> TupleSource:
        if type(key) is not str:
            raise ValueError(f"{type(key).__name__} in place of text")
        source = self._sources.get(key)
        if source is None:
            task, _, _ = key.partition(":")
            # int() would also accept signs, spaces, and numbers that take long to convert.
            if not (task.isascii() and task.isdecimal() and len(task) <= _MAX_TASK_DIGITS):
                raise ValueError(f"{reprlib.repr(key)} does not begin with a task")
            component = self.topology.component_of(int(task))
            stream = key[len(task) + len(component.id) + 2 :]
            source = self.topology.source(int(task), stream)
            if source.key != key:  # from another topology
                raise ValueError(f"{reprlib.repr(key)}, but task {task} is one of {component.id!r}")
            self._sources[key] = source
        return source


def _message_id(flat: list[Any]) -> MessageId:
    tasks, ids = flat[::2], flat[1::2]
    if len(tasks) != len(ids) or not all(type(task) is int for task in tasks):
        raise ValueError("no pairs of a task and an id")
    try:
        hash(tuple(ids))
    except TypeError as error:
        raise ValueError(f"an id that cannot be looked up: {error}") from error
    return tuple(zip(map(check_task, tasks), ids, strict=True))


def _first_fault(payload: bytes, at: int, fields: Sequence[str]) -> str:
    """Describe the first field that cannot be read, with its position."""
    for number, field in enumerate(fields, 1):
        try:
            _, at = read_items(payload, at, 1, 1)
        except FAULTS:
            return f"field {field!r} ({number} of {len(fields)}, at byte {at})"
    raise AssertionError("every field can be read alone")


def _unpackable(message: Tuple) -> str:
    """Return the first part of a tuple that cannot be packed, with the reason."""
    parts = [
        (f"field {field!r}", value) for field, value in zip(message.fields, message.values, strict=False)
    ]
    for name, part in [("its message id", message.message_id), *parts]:
        try:
            pack_values([part])
        except (TypeError, ValueError) as error:
            return f"{name}: {error}"
    raise AssertionError("every part can be packed alone")


_HEAD = b"\x93"  # an array of three
_NO_ID = b"\x90"
_MAX_TASK_DIGITS = 10
_KEPT_BYTES = 256
"""The maximum header size in the cache, so that senders do not control its memory."""
_FIELDS = "its fields"


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
