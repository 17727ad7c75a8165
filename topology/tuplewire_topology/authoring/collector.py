"""Collectors: what spouts and bolts emit through. Source: Storm's `OutputCollector` and its relatives.

A collector checks what is emitted and keeps it, in order, until the executor takes it all at once: so what a
task emits in one go travels together. It does no I/O; acks, fails and errors go to the executor's callbacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tuplewire.errors import MessageError
from tuplewire_topology.authoring.description import Topology
from tuplewire_topology.authoring.tuples import DEFAULT_STREAM, UNANCHORED, MessageId, Tuple, TupleSource

_TEXT = (str, bytes)


@dataclass(slots=True)
class Emitted:
    """Tuples that a task emitted one after the other on one stream.

    task: the one that gets them, on a direct stream; None where the groupings decide.
    """

    source: TupleSource
    task: int | None
    tuples: list[Tuple]


@dataclass(frozen=True, slots=True)
class _Port:
    """One stream of a task. direct: the tasks that may be named on it; None where none may."""

    source: TupleSource
    n_fields: int
    direct: frozenset[int] | None


class Outbox:
    """What one task has emitted and nobody has taken yet, in order; used from the task's thread alone."""

    def __init__(self, topology: Topology, task: int) -> None:
        self.task = task
        self._component = topology.component_of(task)
        self._ports: dict[str, _Port] = {}
        for stream in self._component.streams:
            bolts = [bolt for bolt, _ in topology.targets_of(self._component.id, stream.name)]
            named = frozenset(target for bolt in bolts for target in topology.tasks_of(bolt))
            source = topology.source(task, stream.name)
            self._ports[stream.name] = _Port(source, len(stream.fields), named if stream.direct else None)
        self._emitted: list[Emitted] = []
        self._last: Emitted | None = None
        self._count = 0
        self.serialize: Callable[[Tuple], bytes] | None = None
        """The serializer, if topology.testing.always.try.serialize is set: used to detect changed values."""
        self.observe: Callable[[str, Tuple], None] | None = None
        """Called with each tuple and its stream, where tracing is on."""
        self._as_emitted: list[tuple[Tuple, bytes | None]] = []

    def __len__(self) -> int:
        return self._count

    def put(
        self, stream: str, values: Sequence[Any], message_id: MessageId = UNANCHORED, task: int | None = None
    ) -> None:
        """Add a tuple; MessageError when the stream, the number of values or the task does not fit.

        task: the one that gets it, on a direct stream.
        """
        port = self._ports.get(stream)
        if port is None or isinstance(values, _TEXT) or len(values) != port.n_fields:
            raise self._misfit(port, stream, values)
        if (task is None) != (port.direct is None) or (port.direct is not None and task not in port.direct):
            raise self._misdirected(port, task)
        message = Tuple(values, port.source, message_id)
        if self.observe is not None:
            self.observe(stream, message)
        if self.serialize is not None:
            self._as_emitted.append((message, self._form(message)))
        last = self._last
        if last is not None and last.source is port.source and last.task == task:
            last.tuples.append(message)
        else:
            self._last = Emitted(port.source, task, [message])
            self._emitted.append(self._last)
        self._count += 1

    def take(self) -> list[Emitted]:
        """Return everything that was put since the last time, in order, and forget it.

        Raises MessageError in strict mode if a value has changed since emit.
        """
        as_emitted, self._as_emitted = self._as_emitted, []
        for message, form in as_emitted:
            if form is not None and self._form(message) != form:
                raise MessageError(
                    f"a value of {message!r} has changed since {self._component.id!r} emitted it: emit a "
                    "copy, or make a new value for each tuple"
                )
        emitted, self._emitted, self._last, self._count = self._emitted, [], None, 0
        return emitted

    def _form(self, message: Tuple) -> bytes | None:
        """Return a tuple as bytes, or None if it cannot be serialized; the transfer reports that."""
        assert self.serialize is not None  # noqa: S101 - its callers have looked
        try:
            return self.serialize(message)
        except MessageError:
            return None

    def _misfit(self, port: _Port | None, stream: str, values: Sequence[Any]) -> MessageError:
        if port is None:
            known = ", ".join(map(repr, self._ports)) or "none"
            return MessageError(f"{self._component.id!r} declares no stream {stream!r}; it declares {known}")
        fields = ", ".join(port.source.stream.fields) or "none"
        if isinstance(values, _TEXT):
            what = f"a single {type(values).__name__}: write [value]"
        else:
            what = f"{len(values)} value(s)"
        return MessageError(
            f"stream {stream!r} of {self._component.id!r} has the fields {fields}; this is {what}"
        )

    def _misdirected(self, port: _Port, task: int | None) -> MessageError:
        what = f"stream {port.source.stream.name!r} of {self._component.id!r}"
        if port.direct is None:
            return MessageError(f"{what} is not direct: use emit, or declare the stream with direct=True")
        if task is None:
            return MessageError(f"{what} is direct: use emit_direct, and name the task")
        known = ", ".join(map(str, sorted(port.direct))) or "none"
        return MessageError(f"task {task} does not subscribe to {what}; those that do are {known}")


class _Collector:
    """errors: told of what a spout or bolt reports."""

    def __init__(self, outbox: Outbox, errors: Callable[[Exception], object]) -> None:
        self._outbox = outbox
        self.put = outbox.put
        """Adds a tuple with the message id that it is to have; for the collectors of this module."""
        self._errors = errors

    def report_error(self, error: Exception) -> None:
        """Tell of an error that the spout or bolt goes on after."""
        self._errors(error)


class SpoutOutputCollector(_Collector):
    """What a spout emits through. Source: Storm's `SpoutOutputCollector`.

    wake: has the spout asked for tuples now. Call it, from any thread, when a spout that was exhausted, or
    that waits, has something to emit.
    """

    def __init__(
        self, outbox: Outbox, errors: Callable[[Exception], object], wake: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(outbox, errors)
        self.wake = wake

    def emit(self, values: Sequence[Any], *, stream: str = DEFAULT_STREAM, message_id: Any = None) -> None:
        """Emit a tuple on one of the spout's streams. Do not change its values afterwards.

        message_id: what the spout's ack() or fail() is called with once its fate is known; None when the
        spout does not want to know. It travels with the tuple and all that is anchored to it.
        Raises MessageError when the values do not fit the stream.
        """
        self._outbox.put(stream, values, self._root(message_id))

    def emit_direct(
        self, task: int, values: Sequence[Any], *, stream: str = DEFAULT_STREAM, message_id: Any = None
    ) -> None:
        """Emit a tuple to one task that subscribes to a direct stream; MessageError for another."""
        self._outbox.put(stream, values, self._root(message_id), task)

    def _root(self, message_id: Any) -> MessageId:
        return UNANCHORED if message_id is None else ((self._outbox.task, message_id),)


class OutputCollector(_Collector):
    """What a bolt emits, acks and fails through. Source: Storm's `OutputCollector`.

    acked, failed: told of each tuple, once the bolt is done with it.
    """

    def __init__(
        self,
        outbox: Outbox,
        acked: Callable[[Tuple], None],
        failed: Callable[[Tuple], None],
        errors: Callable[[Exception], object],
    ) -> None:
        super().__init__(outbox, errors)
        self._acked = acked
        self._failed = failed

    def emit(
        self, values: Sequence[Any], *, stream: str = DEFAULT_STREAM, anchors: Tuple | Iterable[Tuple] = ()
    ) -> None:
        """Emit a tuple on one of the bolt's streams. Do not change its values afterwards.

        anchors: the tuples that it comes from; it carries the message ids of all of them.
        Raises MessageError when the values do not fit the stream.
        """
        self._outbox.put(stream, values, _message_id(anchors))

    def emit_direct(
        self,
        task: int,
        values: Sequence[Any],
        *,
        stream: str = DEFAULT_STREAM,
        anchors: Tuple | Iterable[Tuple] = (),
    ) -> None:
        """Emit a tuple to one task that subscribes to a direct stream; MessageError for another."""
        self._outbox.put(stream, values, _message_id(anchors), task)

    def ack(self, message: Tuple) -> None:
        """Say that a tuple is processed."""
        self._acked(message)

    def fail(self, message: Tuple) -> None:
        """Say that a tuple could not be processed."""
        self._failed(message)


class BasicOutputCollector:
    """What a BasicBolt emits through: everything is anchored to one tuple. Source: Storm's of that name."""

    def __init__(self, collector: OutputCollector, anchor: Tuple) -> None:
        self._collector = collector
        self._put = collector.put
        self._message_id = anchor.message_id

    def emit(self, values: Sequence[Any], *, stream: str = DEFAULT_STREAM) -> None:
        """Emit a tuple on one of the bolt's streams; MessageError when the values do not fit it.

        Do not change its values afterwards.
        """
        self._put(stream, values, self._message_id)

    def emit_direct(self, task: int, values: Sequence[Any], *, stream: str = DEFAULT_STREAM) -> None:
        """Emit a tuple to one task that subscribes to a direct stream; MessageError for another."""
        self._put(stream, values, self._message_id, task)

    def report_error(self, error: Exception) -> None:
        """Tell of an error that the bolt goes on after."""
        self._collector.report_error(error)


def _message_id(anchors: Tuple | Iterable[Tuple]) -> MessageId:
    """Return the message ids of all anchors, each once."""
    if isinstance(anchors, Tuple):
        return anchors.message_id
    return tuple(dict.fromkeys(root for anchor in anchors for root in anchor.message_id))
