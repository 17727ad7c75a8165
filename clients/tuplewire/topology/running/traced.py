"""What a topology has in place of its parts where tuples are traced: `emit` at a spout, `execute` at bolts.

A tuple that belongs to a trace carries the context of what has emitted it. Within a process that is an
attribute; between processes it is a header of its message.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from opentelemetry.trace import SpanKind

from tuplewire.group import TaskGroup
from tuplewire.topology.collector import Outbox
from tuplewire.topology.description import ComponentKind, Topology
from tuplewire.topology.running.executor import Undeliverable
from tuplewire.topology.running.receive_queue import AddressedTuples
from tuplewire.topology.running.tuple_transfer import Transfer
from tuplewire.topology.tuples import UNANCHORED, MessageId, Tuple
from tuplewire.tracing.context import MARK, TraceParent, context_of, entry_for, with_headers
from tuplewire.tracing.spans import Attributes, Tracing, traceparent_of


class TracedTuple(Tuple):
    """A tuple that belongs to a trace. context: of what has emitted it. since_ns: when that was."""

    __slots__ = ("context", "since_ns")

    def __init__(self, message: Tuple, context: TraceParent) -> None:
        super().__init__(message.values, message.source, message.message_id)
        self.context = context
        self.since_ns = time.time_ns()


class TracedOutbox(Outbox):
    """What a task emits. A spout's tuples begin traces, a bolt's go on with that of the tuple it executes."""

    def __init__(self, tracing: Tracing, topology: Topology, task: int) -> None:
        super().__init__(topology, task)
        self._tracing = tracing
        self._begins = self._component.kind is ComponentKind.SPOUT
        self.context: TraceParent | None = None
        """Of what the task does now."""

    def put(
        self, stream: str, values: Sequence[Any], message_id: MessageId = UNANCHORED, task: int | None = None
    ) -> None:
        super().put(stream, values, message_id, task)
        context = self._begun(stream) if self._begins and self._tracing.samples() else self.context
        if context is not None and self._last is not None:
            tuples = self._last.tuples
            tuples[-1] = TracedTuple(tuples[-1], context)

    def _begun(self, stream: str) -> TraceParent | None:
        about: Attributes = {"tuplewire.task": self.task, "tuplewire.stream": stream}
        span = self._tracing.begin("emit", self._component.id, SpanKind.PRODUCER, about)
        span.end()
        return traceparent_of(span)

    def traced(self, execute: Callable[[Tuple], None]) -> Callable[[Tuple], None]:
        """Return what executes a tuple, in a span of its own if it belongs to a trace."""

        def execute_traced(message: Tuple) -> None:
            if not isinstance(message, TracedTuple):
                execute(message)
                return
            about: Attributes = {
                "tuplewire.task": self.task,
                "tuplewire.source": message.source.key,
                "tuplewire.waited_seconds": (time.time_ns() - message.since_ns) / 1e9,
            }
            span = self._tracing.begin(
                "execute", self._component.id, SpanKind.CONSUMER, about, parent=message.context
            )
            with self._tracing.around(span):
                self.context = traceparent_of(span)
                try:
                    execute(message)
                finally:
                    self.context = None

        return execute_traced


class TracedTransfer(Transfer):
    """Hands contexts on to other processes, as headers, and takes them from there."""

    __slots__ = ()

    def _group(
        self, column: AddressedTuples, known: dict[Tuple, bytes], undeliverable: Undeliverable
    ) -> list[TaskGroup]:
        groups = super()._group(column, known, undeliverable)
        entries = [
            entry_for(each.context.decode()) if isinstance(each, TracedTuple) else b""
            for each in column.tuples
        ]
        # Where a tuple has no form, nobody knows which of the payloads is whose.
        if any(entries) and [len(group) for group in groups] == [len(entries)]:
            return [with_headers(groups[0], entries)]
        return groups

    def _tuples(self, group: TaskGroup) -> list[Tuple]:
        tuples = super()._tuples(group)
        encoded = group.encoded_headers() if MARK in group.header_data else None
        if encoded is None or len(encoded) != len(tuples):
            return tuples
        found = zip(tuples, map(context_of, encoded), strict=True)
        return [message if context is None else TracedTuple(message, context) for message, context in found]
