"""The transfer of tuples between executors, within a process by reference, else serialized over the link.

Used by executor_group.py and its executors. A tuple is serialized once for all of its target tasks. A traced
tuple carries the context of its emitter: in an attribute within a process, and in a header of its message
between processes. Its spans are `emit` at a spout, and `execute` at bolts. Owns the counts of tuples in
progress and of received bytes. Thread-safe. Exception: TaskTracer. Design: docs/design/acking.md.
Source: Storm's `WorkerTransfer` and `transferLocal`.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tuplewire.errors import ClosedError, MalformedTupleError, MessageError, MessageTooLargeError
from tuplewire.text.events import event_logger
from tuplewire.tracing.context import MARK, TraceParent, context_of, encode_context, traceparent_of
from tuplewire.values.group import TaskGroup
from tuplewire_topology.acking.acker import check_roots
from tuplewire_topology.authoring.description import ACKER_COMPONENT, Component, ComponentKind, Topology
from tuplewire_topology.authoring.topology_settings import TopologySettings
from tuplewire_topology.authoring.tuples import AddressedTuples, Tuple
from tuplewire_topology.running.link import Link
from tuplewire_topology.running.receive_queue import ReceiveQueue
from tuplewire_topology.serial.serializer import TupleSerializer

if TYPE_CHECKING:
    from tuplewire.tracing.spans import Attributes, Tracing


class TaskTracer:
    """Creates the spans of a task. A spout's tuples start traces; a bolt's tuples join its input's trace."""

    def __init__(self, tracing: Tracing, component: Component, task: int) -> None:
        self._tracing = tracing
        self._component = component
        self._task = task
        self._trace_context: TraceParent | None = None
        """The context of the span in progress."""

    def trace_emit(self, stream: str, message: Tuple) -> None:
        """Set the trace context of a tuple, if any; a spout may start the trace."""
        context = self._trace_context
        if self._component.kind is ComponentKind.SPOUT and self._tracing.should_sample():
            attributes: Attributes = {"tuplewire.task": self._task, "tuplewire.stream": stream}
            span = self._tracing.start_span("emit", self._component.id, attributes)
            span.end()
            context = traceparent_of(span)
        if context is not None:
            message.trace = context, time.time_ns()

    def wrap(self, execute: Callable[[Tuple], None]) -> Callable[[Tuple], None]:
        """Return a function that executes a tuple, within its own span if the tuple is traced."""

        def execute_observed(message: Tuple) -> None:
            if message.trace is None:
                execute(message)
                return
            context, wait_start_ns = message.trace
            attributes: Attributes = {
                "tuplewire.task": self._task,
                "tuplewire.source": message.source.wire_id,
                "tuplewire.waited_seconds": (time.time_ns() - wait_start_ns) / 1e9,
            }
            span = self._tracing.start_span("execute", self._component.id, attributes, parent=context)
            with self._tracing.use_span(span):
                self._trace_context = traceparent_of(span)
                try:
                    execute(message)
                finally:
                    self._trace_context = None

        return execute_observed


def with_trace_headers(group: TaskGroup, tuples: Sequence[Tuple]) -> TaskGroup:
    """Return the messages of these tuples, with their contexts as headers."""
    entries = [b"" if each.trace is None else encode_context(each.trace[0].decode()) for each in tuples]
    # A tuple that cannot be serialized has no payload, so payloads and tuples do not match.
    return group.with_headers(entries) if any(entries) and group.count == len(entries) else group


def read_trace_headers(group: TaskGroup, tuples: Sequence[Tuple]) -> None:
    """Set the contexts of tuples from the headers of their messages."""
    encoded = group.encoded_headers() if MARK in group.header_data else None
    if encoded is None or len(encoded) != len(tuples):  # malformed messages have no tuple
        return
    for message, headers in zip(tuples, encoded, strict=True):
        if (context := context_of(headers)) is not None:
            message.trace = context, time.time_ns()


logger = event_logger(__name__)

OnUndeliverable = Callable[[Tuple, Exception], None]
_Put = Callable[[AddressedTuples], None]


class TupleCounter:
    """Counts the tuples in the queues and executors of a worker. Thread-safe.

    `in_progress` is their number. A worker is idle if it is 0, and every spout is inactive or exhausted.
    `detection_number` counts termination detections; each needs a new round of the spouts. `paused`, set
    on any thread, rejects ticks.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.in_progress = 0
        self.detection_number = 0
        self._sent = 0
        self._received = 0
        self.paused = False

    def add(self, change: int, *, sent: int = 0, received: int = 0) -> None:
        """Count tuples: a change of the number in progress, and the tuples sent and received elsewhere.

        Count new tuples before they can be executed or sent. Subtract executed ones after the tuples that
        they caused were counted. A lost tuple is received, but never in progress.
        """
        with self._lock:
            self.in_progress += change
            self._sent += sent
            self._received += received

    def try_add(self) -> bool:
        """Count one tick; while paused, return False and count nothing."""
        with self._lock:
            if not self.paused:
                self.add(1)
                return True
            return False

    def snapshot(self, spouts_finished: Callable[[], bool]) -> tuple[bool, int, int]:
        """Return True if idle (see `spouts_finished`), and the numbers of tuples sent and received."""
        with self._lock:
            return self.in_progress == 0 and spouts_finished(), self._sent, self._received


@dataclass(slots=True, eq=False)
class Transfer:
    """Sends columns to local queues or over the link, and queues received tuples. Thread-safe.

    The owner adds and removes `queues`. `acker_tasks` are the tasks that message IDs may name, if any.
    """

    topology: Topology
    link: Link
    settings: TopologySettings
    tracing: Tracing | None
    queues: dict[int, ReceiveQueue] = field(default_factory=dict)
    counter: TupleCounter = field(default_factory=TupleCounter)
    acker_tasks: range | None = field(init=False)
    serializer: TupleSerializer = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _received_bytes: Counter[tuple[int | None, int]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        has_ackers = ACKER_COMPONENT in self.topology.components
        self.acker_tasks = self.topology.tasks_of(ACKER_COMPONENT) if has_ackers else None
        self.serializer = TupleSerializer(self.topology)

    @property
    def missing_connections(self) -> str:
        """The missing required connections, as text; empty if none, or if the worker is another process."""
        return "" if self.link.worker is None else self.link.worker.missing_connections()

    def send(self, columns: Sequence[AddressedTuples], on_undeliverable: OnUndeliverable) -> None:
        """Send columns, in order for each task, waiting for free space. Call this on an executor's thread.

        The tuples of a column have one source. Raises ClosedError if a target executor has stopped.
        """
        serialized: dict[Tuple, bytes] = {}  # serialized tuples of this call
        remote: list[TaskGroup] = []
        for column in columns:
            queue = self.queues.get(column.task)
            if queue is None:
                remote += self._make_group(column, serialized, on_undeliverable)
                continue
            if self.settings.always_serialize:
                payloads = self._serialize_column(column, serialized, on_undeliverable)
                column = AddressedTuples(column.task, list(map(self.serializer.deserialize, payloads)))  # noqa: PLW2901
            # Never wait for the queue of this thread, which only it empties, nor as the acker: a spout
            # may be waiting for it (docs/design/acking.md).
            is_waiting = column.tuples and not (
                queue is self.queues.get(column.tuples[0].source_task)
                or column.tuples[0].source_component == ACKER_COMPONENT
            )
            if not self._publish(queue, column, queue.publish if is_waiting else queue.publish_to_overflow):
                remote += self._make_group(column, serialized, on_undeliverable)
        if remote:
            self.counter.add(0, sent=sum(map(len, remote)))  # first: no receiver may count them earlier
            try:
                self.link.send(remote)
            except MessageTooLargeError as error:
                tuple_of = {payload: message for message, payload in serialized.items()}
                for group, payload in [(each, payload) for each in remote for payload in each.payloads()]:
                    size, limit = len(payload), error.limit_bytes
                    if size <= limit:  # a message may fit only without its headers
                        self.link.send([TaskGroup.from_checked(group.task, group.source, [payload])])
                    else:
                        self.counter.add(0, received=1)  # as lost
                        on_undeliverable(tuple_of[payload], MessageTooLargeError(group.task, size, limit))

    def _make_group(
        self, column: AddressedTuples, serialized: dict[Tuple, bytes], on_undeliverable: OnUndeliverable
    ) -> list[TaskGroup]:
        payloads = self._serialize_column(column, serialized, on_undeliverable)
        if not payloads:
            return []
        group = TaskGroup.from_checked(column.task, column.tuples[0].source_task, payloads)
        return [with_trace_headers(group, column.tuples) if self.tracing is not None else group]

    def _serialize_column(
        self, column: AddressedTuples, serialized: dict[Tuple, bytes], on_undeliverable: OnUndeliverable
    ) -> list[bytes]:
        payloads = []
        for message in column.tuples:
            payload = serialized.get(message)
            if payload is None:
                try:
                    payload = serialized[message] = self.serializer.serialize(message)
                except MessageError as error:
                    on_undeliverable(message, error)
                    continue
            payloads.append(payload)
        return payloads

    def enqueue(self, column: AddressedTuples, received: int = 0) -> None:
        """Queue tuples, such as ticks, without waiting. Raises ClosedError if the executor has stopped."""
        queue = self.queues.get(column.task)
        if queue is None or not self._publish(queue, column, queue.publish_to_overflow, received):
            raise ClosedError(f"task {column.task} no longer has an executor here")

    def _publish(self, queue: ReceiveQueue, column: AddressedTuples, put: _Put, received: int = 0) -> bool:
        """Count and queue tuples; return False, and count nothing, if their task has left."""
        self.counter.add(len(column.tuples), received=received)
        try:
            put(column)
        except ClosedError:
            if self.queues.get(column.task) is queue:
                raise
            self.counter.add(-len(column.tuples), received=-received)
            return False
        return True

    def receive(self, group: TaskGroup, on_executed: Callable[[], None]) -> None:
        """Queue tuples from other processes without waiting; the credit of their senders bounds them.

        Calls `on_executed` afterwards. Raises ClosedError if the executor of the task has stopped.
        Source: Storm's `DeserializingConnectionCallback`.
        """
        if self.settings.has_size_metrics:
            with self._lock:
                self._received_bytes[group.source, group.task] += len(group.data)
        if tuples := self._read_tuples(group):
            self.enqueue(AddressedTuples(group.task, tuples, on_executed), received=len(tuples))
        else:  # no readable tuple: without an acknowledgement it would be delivered again
            on_executed()

    def _read_tuples(self, group: TaskGroup) -> list[Tuple]:
        """Return the readable tuples of a group; count and log the others."""
        tuples = []
        for payload in group.payloads():
            try:
                message = self.serializer.deserialize(payload)
                if message.roots and self.acker_tasks is not None:
                    check_roots(message.roots, self.acker_tasks)
                tuples.append(message)
            except MalformedTupleError as error:
                extra = {"source": group.source, "task": group.task, "reason": str(error)}
                logger.warning("tuple.malformed", extra=extra)
                # Its sender has counted it, and the sums must be equal at the end.
                self.counter.add(0, received=1)
        if self.tracing is not None:
            read_trace_headers(group, tuples)
        return tuples

    def received_bytes(self, tasks: range) -> Mapping[str, int]:
        """Return the bytes received for tasks, by component. See TopologySettings.has_size_metrics."""
        sizes: Counter[str] = Counter()
        with self._lock:
            for (source, task), size in self._received_bytes.items():
                if task in tasks:
                    sizes["" if source is None else self.topology.component_of(source).id] += size
        return sizes
