"""The spans `send`, `receive` and `process` of a program's messages.

Used by clients and subscriptions with tracing. Owns no span. Thread-safe. Design: docs/design/traces.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from opentelemetry.trace import Span, Status, StatusCode

from tuplewire.session.consume import ArrivedBatch
from tuplewire.tracing.context import MARK, TraceParent, count_contexts, encode_span, with_context
from tuplewire.tracing.spans import Attributes, ProcessSpans, Tracing
from tuplewire.values.group import TaskGroup

_MAX_NAMED = 3


def destination_of(tasks: Iterable[int]) -> str:
    """Return the name of a destination: the task, or a few of them."""
    known = sorted(set(tasks))
    shown = ",".join(map(str, known[:_MAX_NAMED]))
    return shown if len(known) <= _MAX_NAMED else f"{shown},..."


def _attributes(operation: str, address: str, messages: int) -> Attributes:
    return {
        "messaging.operation.type": operation,
        "messaging.batch.message_count": messages,
        "server.address": address,
    }


@dataclass(frozen=True, slots=True)
class SendSpan:
    """One call that sends messages.

    Attributes:
        groups: The messages, possibly with an additional header.
        end: Must be called with the error of the call, or None. Otherwise the call is not recorded.
    """

    groups: Sequence[TaskGroup]
    end: Callable[[BaseException | None], object]

    def __enter__(self) -> Sequence[TaskGroup]:
        return self.groups

    def __exit__(self, _: object, error: BaseException | None, traceback: object) -> None:
        self.end(error)


class ProgramObserver:
    """Makes the spans of a program's clients, and adds a context to the messages that they send."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing

    def should_sample(self) -> bool:
        """Return True if the next call that sends messages must be observed by sending()."""
        return self._tracing.should_sample()

    def sending(self, groups: Sequence[TaskGroup], address: str, max_message_bytes: int) -> SendSpan:
        """Start a span, and add its context to the messages without one, unless one would be too large."""
        if all(MARK in group.header_data for group in groups):
            return SendSpan(groups, lambda _: None)
        destination = destination_of(group.task for group in groups)
        attributes = _attributes("send", address, sum(map(len, groups)))
        span = self._tracing.start_span("send", destination, attributes)
        if (entry := encode_span(span)) is not None:
            groups = [with_context(group, entry, max_message_bytes) for group in groups]
        return SendSpan(groups, partial(_end, span))

    def on_received(self, arrived: ArrivedBatch, address: str) -> Callable[[], object] | None:
        """Make a span from the arrival until now, and start one span for each context in the messages.

        Return a function to call when the consumer has processed the messages.
        """
        groups = arrived.groups
        contexts: Counter[TraceParent] = Counter()
        count_contexts(groups, contexts)
        if not contexts:
            return None
        destination = destination_of(group.task for group in groups)
        receive_attributes = _attributes("receive", address, sum(map(len, groups)))
        received = self._tracing.record_receive(destination, contexts, receive_attributes, arrived.arrived_ns)
        links = () if received is None else [received]
        start, attributes = self._tracing.start_span, partial(_attributes, "process", address)
        spans = [
            start("process", destination, attributes(messages), parent=context, links=links)
            for context, messages in contexts.items()
        ]
        return ProcessSpans(spans).end


def _end(span: Span, error: BaseException | None) -> None:
    if error is not None:
        span.record_exception(error)
        span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
    span.end()
