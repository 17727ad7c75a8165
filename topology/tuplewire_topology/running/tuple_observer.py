"""The spans of tuples: `emit` at a spout, `execute` at bolts.

A traced tuple carries the context of its emitter: in an attribute within a process, and in a header of its
message between processes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tuplewire.tracing.context import MARK, TraceParent, context_of, entry_for, traceparent_of
from tuplewire.values.group import TaskGroup
from tuplewire_topology.authoring.description import Component, ComponentKind
from tuplewire_topology.authoring.tuples import Tuple

if TYPE_CHECKING:
    from tuplewire.tracing.spans import Attributes, Tracing


class TaskObserver:
    """Creates the spans of a task. A spout's tuples start traces; a bolt's tuples join its input's trace."""

    def __init__(self, tracing: Tracing, component: Component, task: int) -> None:
        self._tracing = tracing
        self._component = component
        self._task = task
        self._context: TraceParent | None = None
        """The context of the span in progress."""

    def emitted(self, stream: str, message: Tuple) -> None:
        """Set the context of a tuple if it belongs to a trace."""
        context = self._context
        if self._component.kind is ComponentKind.SPOUT and self._tracing.samples():
            about: Attributes = {"tuplewire.task": self._task, "tuplewire.stream": stream}
            span = self._tracing.begin("emit", self._component.id, about)
            span.end()
            context = traceparent_of(span)
        if context is not None:
            message.trace = context, time.time_ns()

    def around(self, execute: Callable[[Tuple], None]) -> Callable[[Tuple], None]:
        """Return a function that executes a tuple, within its own span if the tuple is traced."""

        def execute_observed(message: Tuple) -> None:
            if message.trace is None:
                execute(message)
                return
            context, since_ns = message.trace
            about: Attributes = {
                "tuplewire.task": self._task,
                "tuplewire.source": message.source.key,
                "tuplewire.waited_seconds": (time.time_ns() - since_ns) / 1e9,
            }
            span = self._tracing.begin("execute", self._component.id, about, parent=context)
            with self._tracing.around(span):
                self._context = traceparent_of(span)
                try:
                    execute(message)
                finally:
                    self._context = None

        return execute_observed


def with_contexts(group: TaskGroup, tuples: Sequence[Tuple]) -> TaskGroup:
    """Return the messages of these tuples, with their contexts as headers."""
    entries = [b"" if each.trace is None else entry_for(each.trace[0].decode()) for each in tuples]
    # A tuple that cannot be serialized has no payload, so payloads and tuples do not match.
    return group.with_headers(entries) if any(entries) and len(group) == len(entries) else group


def take_contexts(group: TaskGroup, tuples: Sequence[Tuple]) -> None:
    """Set the contexts of tuples from the headers of their messages."""
    encoded = group.encoded_headers() if MARK in group.header_data else None
    if encoded is None or len(encoded) != len(tuples):  # malformed messages have no tuple
        return
    for message, headers in zip(tuples, encoded, strict=True):
        if (context := context_of(headers)) is not None:
            message.trace = context, time.time_ns()
