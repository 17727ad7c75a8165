"""Collectors, with which spouts and bolts emit tuples. Source: Storm's `OutputCollector` and its relatives.

Used by executors, one collector per task. Owns the emitted tuples, checked and in order, until the executor
takes them as one batch. Does no I/O. Not thread-safe. Design: docs/design/topologies.md.
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
    """Consecutive tuples of a task on one stream. `task` is the target on a direct stream, else None."""

    source: TupleSource
    task: int | None
    tuples: list[Tuple]


@dataclass(frozen=True, slots=True)
class _Port:
    """One stream of a task. `direct` has the permitted targets of a direct stream, and is None otherwise."""

    source: TupleSource
    n_fields: int
    direct: frozenset[int] | None


class Outbox:
    """The tuples that a task emitted and its executor has not taken, in order. Not thread-safe."""

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
        """Called with each stream name and tuple if tracing is on."""
        self._as_emitted: list[tuple[Tuple, bytes | None]] = []

    def __len__(self) -> int:
        return self._count

    def put(
        self, stream: str, values: Sequence[Any], message_id: MessageId = UNANCHORED, task: int | None = None
    ) -> None:
        """Add a tuple. Raises MessageError if the stream, the number of values or the task does not match."""
        port = self._ports.get(stream)
        if port is None or isinstance(values, _TEXT) or len(values) != port.n_fields:
            raise self._misfit(port, stream, values)
        # A direct stream needs a task that subscribes to it; any other stream must not name a task.
        if (task is None) != (port.direct is None) or (port.direct is not None and task not in port.direct):
            raise self._misdirected(port, task)
        message = Tuple(values, port.source, message_id)
        if self.observe is not None:
            self.observe(stream, message)
        if self.serialize is not None:
            self._as_emitted.append((message, self._form(message)))
        last = self._last
        if last is not None and last.source is port.source and last.task == task:
            last.tuples.append(message)  # one run is routed by one call of a grouping
        else:
            self._last = Emitted(port.source, task, [message])
            self._emitted.append(self._last)
        self._count += 1

    def take(self) -> list[Emitted]:
        """Remove and return all tuples. With `serialize`, raises MessageError if a value has changed."""
        as_emitted, self._as_emitted = self._as_emitted, []
        # Within a worker, tuples are passed by reference, so receivers would see a change.
        for message, form in as_emitted:
            if form is not None and self._form(message) != form:
                raise MessageError(
                    f"a value of {message!r} has changed since {self._component.id!r} emitted it: emit a "
                    "copy, or make a new value for each tuple"
                )
        emitted, self._emitted, self._last, self._count = self._emitted, [], None, 0
        return emitted

    def _form(self, message: Tuple) -> bytes | None:
        """Return a tuple as bytes, or None if it cannot be serialized, which the transfer reports later."""
        assert self.serialize is not None  # noqa: S101 - callers check this
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
    """Passes each reported error to the callback `errors`."""

    def __init__(self, outbox: Outbox, errors: Callable[[Exception], object]) -> None:
        self._outbox = outbox
        self._errors = errors

    def report_error(self, error: Exception) -> None:
        """Report an error after which the spout or bolt continues."""
        self._errors(error)


class SpoutOutputCollector(_Collector):
    """Emits the tuples of a spout. Source: Storm's `SpoutOutputCollector`.

    Call wake(), from any thread, when an exhausted or waiting spout has tuples again. Its executor then
    calls next_tuple() without further delay.
    """

    def __init__(
        self, outbox: Outbox, errors: Callable[[Exception], object], wake: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(outbox, errors)
        self.wake = wake

    def emit(self, values: Sequence[Any], *, stream: str = DEFAULT_STREAM, message_id: Any = None) -> None:
        """Emit a tuple on one of the spout's streams.

        Args:
            values: A value for each field. Do not change them afterwards.
            message_id: The argument of the later ack() or fail(); None: neither is called. Without acker
                tasks, it is sent with the tuple and all tuples anchored to it.

        Raises:
            MessageError: The stream is direct, is not in `outputs`, or has another number of fields.
        """
        self._outbox.put(stream, values, self._root(message_id))

    def emit_direct(
        self, task: int, values: Sequence[Any], *, stream: str = DEFAULT_STREAM, message_id: Any = None
    ) -> None:
        """Emit like emit(), to one subscriber of a direct stream. Raises MessageError for another task."""
        self._outbox.put(stream, values, self._root(message_id), task)

    def _root(self, message_id: Any) -> MessageId:
        return UNANCHORED if message_id is None else ((self._outbox.task, message_id),)


class OutputCollector(_Collector):
    """Emits, acks and fails the tuples of a bolt. Source: Storm's `OutputCollector`."""

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
        """Emit a tuple on one of the bolt's streams. Raises errors as SpoutOutputCollector.emit() does.

        Args:
            values: A value for each field. Do not change them afterwards.
            anchors: The input tuples that it results from; it carries their message ids.
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
        """Emit like emit(), to one subscriber of a direct stream. Raises MessageError for another task."""
        self._outbox.put(stream, values, _message_id(anchors), task)

    def ack(self, message: Tuple) -> None:
        """Mark an input tuple as processed."""
        self._acked(message)

    def fail(self, message: Tuple) -> None:
        """Mark an input tuple as failed."""
        self._failed(message)


class BasicOutputCollector:
    """Emits the tuples of a BasicBolt, all anchored to its input. Source: Storm's `BasicOutputCollector`."""

    def __init__(self, collector: OutputCollector, anchor: Tuple) -> None:
        self._collector = collector
        self._put = collector._outbox.put
        self._message_id = anchor.message_id

    def emit(self, values: Sequence[Any], *, stream: str = DEFAULT_STREAM) -> None:
        """Emit a tuple, and do not change its values. Raises MessageError if they do not match the stream."""
        self._put(stream, values, self._message_id)

    def emit_direct(self, task: int, values: Sequence[Any], *, stream: str = DEFAULT_STREAM) -> None:
        """Emit like emit(), to one subscriber of a direct stream. Raises MessageError for another task."""
        self._put(stream, values, self._message_id, task)

    def report_error(self, error: Exception) -> None:
        """Report an error after which the bolt continues."""
        self._collector.report_error(error)


def _message_id(anchors: Tuple | Iterable[Tuple]) -> MessageId:
    if isinstance(anchors, Tuple):
        return anchors.message_id
    return tuple(dict.fromkeys(root for anchor in anchors for root in anchor.message_id))
