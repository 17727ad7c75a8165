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
from tuplewire_topology.authoring.tuples import DEFAULT_STREAM, NO_ROOTS, Roots, Tuple, TupleSource

_NO_SEQUENCES = (str, bytes, dict, set, frozenset)


@dataclass(slots=True)
class EmittedTuples:
    """Consecutive tuples of a task on one stream. `target_task` is None unless the stream is direct."""

    source: TupleSource
    target_task: int | None
    tuples: list[Tuple]


@dataclass(frozen=True, slots=True)
class _Port:
    """One stream of a task. `direct_targets` are the permitted targets of a direct stream; else None."""

    source: TupleSource
    n_fields: int
    direct_targets: frozenset[int] | None


class Outbox:
    """The tuples that a task emitted and its executor has not taken, in order. Not thread-safe."""

    def __init__(self, topology: Topology, task: int) -> None:
        self.task = task
        self._component = topology.component_of(task)
        self._ports: dict[str, _Port] = {}
        for stream in self._component.streams:
            bolts = [bolt for bolt, _ in topology.subscribers_of(self._component.id, stream.name)]
            named = frozenset(target for bolt in bolts for target in topology.tasks_of(bolt))
            source = topology.source(task, stream.name)
            self._ports[stream.name] = _Port(source, len(stream.fields), named if stream.direct else None)
        self._emitted: list[EmittedTuples] = []
        self._last: EmittedTuples | None = None
        self._count = 0
        self.serialize: Callable[[Tuple], bytes] | None = None
        """The serializer, if topology.testing.always.try.serialize is set: used to detect changed values."""
        self.on_emit: Callable[[str, Tuple], None] | None = None
        """Called with each stream name and tuple if tracing is on."""
        self._emitted_payloads: list[tuple[Tuple, bytes | None]] = []

    def __len__(self) -> int:
        return self._count

    def put(
        self, stream: str, values: Sequence[Any], roots: Roots = NO_ROOTS, task: int | None = None
    ) -> None:
        """Add a tuple. Raises MessageError if the stream, the number of values or the task does not match."""
        port = self._ports.get(stream)
        if port is None or isinstance(values, _NO_SEQUENCES) or len(values) != port.n_fields:
            raise self._mismatch_error(port, stream, values)
        # A direct stream needs a task that subscribes to it; any other stream must not name a task.
        if task not in ((None,) if port.direct_targets is None else port.direct_targets):
            raise self._target_error(port, task)
        message = Tuple(values, port.source, roots)
        if self.on_emit is not None:
            self.on_emit(stream, message)
        if self.serialize is not None:
            self._emitted_payloads.append((message, self._serialize_or_none(message)))
        last = self._last
        if last is not None and last.source is port.source and last.target_task == task:
            last.tuples.append(message)  # one run is routed by one call of a grouping
        else:
            self._last = EmittedTuples(port.source, task, [message])
            self._emitted.append(self._last)
        self._count += 1

    def take_all(self) -> list[EmittedTuples]:
        """Remove and return all tuples. With `serialize`, raises MessageError if a value has changed."""
        emitted_forms, self._emitted_payloads = self._emitted_payloads, []
        # Within a worker, tuples are passed by reference, so receivers would see a change.
        for message, form in emitted_forms:
            if form is not None and self._serialize_or_none(message) != form:
                raise MessageError(
                    f"a value of {message!r} has changed since {self._component.id!r} emitted it: emit a "
                    "copy, or make a new value for each tuple"
                )
        emitted, self._emitted, self._last, self._count = self._emitted, [], None, 0
        return emitted

    def _serialize_or_none(self, message: Tuple) -> bytes | None:
        """Return a tuple as bytes, or None if it cannot be serialized, which the transfer reports later."""
        assert self.serialize is not None  # noqa: S101 - callers check this
        try:
            return self.serialize(message)
        except MessageError:
            return None

    def _mismatch_error(self, port: _Port | None, stream: str, values: Sequence[Any]) -> MessageError:
        if port is None:
            known = ", ".join(map(repr, self._ports)) or "none"
            return MessageError(f"{self._component.id!r} declares no stream {stream!r}; it declares {known}")
        fields = ", ".join(port.source.stream.fields) or "none"
        single = f"a single {type(values).__name__}: write [value], with a value for each field"
        problem = single if isinstance(values, _NO_SEQUENCES) else f"{len(values)} value(s)"
        return MessageError(
            f"stream {stream!r} of {self._component.id!r} has the fields {fields}; this is {problem}"
        )

    def _target_error(self, port: _Port, task: int | None) -> MessageError:
        stream = f"stream {port.source.stream.name!r} of {self._component.id!r}"
        if port.direct_targets is None:
            return MessageError(f"{stream} is not direct: use emit, or declare the stream with direct=True")
        if task is None:
            return MessageError(f"{stream} is direct: use emit_direct, and name the task")
        known = ", ".join(map(str, sorted(port.direct_targets))) or "none"
        return MessageError(f"task {task} does not subscribe to {stream}; its subscribers are {known}")


class _Collector:
    """Passes each reported error to the callback `on_error`."""

    def __init__(self, outbox: Outbox, on_error: Callable[[Exception], object]) -> None:
        self._outbox = outbox
        self._on_error = on_error

    def report_error(self, error: Exception) -> None:
        """Report an error after which the spout or bolt continues."""
        self._on_error(error)


class SpoutOutputCollector(_Collector):
    """Emits the tuples of a spout. Source: Storm's `SpoutOutputCollector`.

    Call wake(), from any thread, when an exhausted or waiting spout has tuples again. Its executor then
    calls next_tuple() without further delay.
    """

    def __init__(
        self, outbox: Outbox, on_error: Callable[[Exception], object], wake: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(outbox, on_error)
        self.wake = wake

    def emit(self, values: Sequence[Any], *, stream: str = DEFAULT_STREAM, message_id: Any = None) -> None:
        """Emit a tuple on one of the spout's streams.

        Args:
            values: A value for each field. Do not change them afterwards.
            message_id: The argument of the later ack() or fail(); None: neither is called. Without acker
                tasks, it is sent with the tuple and all tuples anchored to it.

        Raises:
            MessageError: The stream is direct or not in `outputs`, the values are not one for each field,
                or the message id cannot be hashed.
        """
        self._outbox.put(stream, values, self._roots_of(message_id))

    def emit_direct(
        self, task: int, values: Sequence[Any], *, stream: str = DEFAULT_STREAM, message_id: Any = None
    ) -> None:
        """Emit like emit(), to one subscriber of a direct stream. Raises MessageError for another task."""
        self._outbox.put(stream, values, self._roots_of(message_id), task)

    def _roots_of(self, message_id: Any) -> Roots:
        roots = NO_ROOTS if message_id is None else ((self._outbox.task, message_id),)
        try:
            hash(roots)  # only a local cluster needs it, but a topology must run in every cluster
        except TypeError as error:
            raise MessageError(f"the message id {message_id!r} cannot be used: {error}") from error
        return roots


class OutputCollector(_Collector):
    """Emits, acks and fails the tuples of a bolt. Source: Storm's `OutputCollector`."""

    def __init__(
        self,
        outbox: Outbox,
        on_ack: Callable[[Tuple], None],
        on_fail: Callable[[Tuple], None],
        on_error: Callable[[Exception], object],
    ) -> None:
        super().__init__(outbox, on_error)
        self._on_ack = on_ack
        self._on_fail = on_fail

    def emit(
        self, values: Sequence[Any], *, stream: str = DEFAULT_STREAM, anchors: Tuple | Iterable[Tuple] = ()
    ) -> None:
        """Emit a tuple on one of the bolt's streams. Raises errors as SpoutOutputCollector.emit() does.

        Args:
            values: A value for each field. Do not change them afterwards.
            anchors: The input tuples that the tuple results from. Its outcome counts for them.
        """
        self._outbox.put(stream, values, _roots_of(anchors))

    def emit_direct(
        self,
        task: int,
        values: Sequence[Any],
        *,
        stream: str = DEFAULT_STREAM,
        anchors: Tuple | Iterable[Tuple] = (),
    ) -> None:
        """Emit like emit(), to one subscriber of a direct stream. Raises MessageError for another task."""
        self._outbox.put(stream, values, _roots_of(anchors), task)

    def ack(self, message: Tuple) -> None:
        """Mark an input tuple as processed."""
        self._on_ack(message)

    def fail(self, message: Tuple) -> None:
        """Mark an input tuple as failed."""
        self._on_fail(message)


class BasicOutputCollector:
    """Emits the tuples of a BasicBolt, all anchored to its input. Source: Storm's `BasicOutputCollector`."""

    def __init__(self, collector: OutputCollector, anchor: Tuple) -> None:
        self._collector = collector
        self._put = collector._outbox.put
        self._roots = anchor.roots

    def emit(self, values: Sequence[Any], *, stream: str = DEFAULT_STREAM) -> None:
        """Emit a tuple; do not change its values afterwards. Raises errors as OutputCollector.emit() does."""
        self._put(stream, values, self._roots)

    def emit_direct(self, task: int, values: Sequence[Any], *, stream: str = DEFAULT_STREAM) -> None:
        """Emit like emit(), to one subscriber of a direct stream. Raises MessageError for another task."""
        self._put(stream, values, self._roots, task)

    def report_error(self, error: Exception) -> None:
        """Report an error after which the bolt continues."""
        self._collector.report_error(error)


def _roots_of(anchors: Tuple | Iterable[Tuple]) -> Roots:
    if isinstance(anchors, Tuple):
        return anchors.roots
    return tuple(dict.fromkeys(root for anchor in anchors for root in anchor.roots))
