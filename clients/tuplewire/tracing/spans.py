"""The spans of this process. OpenTelemetry's SDK sends them, unless the program has its own provider.

Used by clients, subscriptions, the observers of workers and topologies, and Spark's rows. Owns the tracer and
the limit of spans a second. Thread-safe. Design: docs/design/traces.md.
"""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from urllib.parse import urlsplit
from urllib.request import getproxies

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, SpanKind
from opentelemetry.util.types import AttributeValue

from tuplewire.session.consume import ArrivedBatch
from tuplewire.text.events import event_logger
from tuplewire.tracing.context import (
    MARK,
    TraceParent,
    count_contexts,
    encode_span,
    parse_ids,
    traceparent_of,
    with_context,
)
from tuplewire.values.group import TaskGroup

logger = event_logger(__name__)

Attributes = Mapping[str, AttributeValue]
_SYSTEM = "tuplewire"
_MAX_SPANS_PER_SECOND = 2000
"""The maximum number of spans of record() in a second: bounds the work that senders cause in a worker."""
_FLUSH_SECONDS = 2.0
_CONNECT_SECONDS = 0.5
_RETRY_SECONDS = 5.0  # the interval of OpenTelemetry's batches
_MAX_NAMED = 3
"""The maximum number of tasks in a span's destination."""
_KINDS = {
    "send": SpanKind.PRODUCER,
    "emit": SpanKind.PRODUCER,
    "receive": SpanKind.CONSUMER,
    "process": SpanKind.CONSUMER,
    "execute": SpanKind.CONSUMER,
}
"""The kind of span for each operation; all other spans are internal."""


class _Exporter(OTLPSpanExporter):
    """Drops spans while no collector accepts connections: OpenTelemetry would retry them even at exit."""

    _next_attempt = 0.0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if time.monotonic() < self._next_attempt:
            return SpanExportResult.FAILURE
        url = urlsplit(self._endpoint)
        port = url.port or {"http": 80, "https": 443}.get(url.scheme, 0)
        try:
            if url.scheme not in getproxies():  # only the proxy may be able to reach the collector
                socket.create_connection((url.hostname or "", port), _CONNECT_SECONDS).close()
        except OSError as error:
            self._next_attempt = time.monotonic() + _RETRY_SECONDS
            facts = {"endpoint": f"{url.hostname}:{port}", "reason": str(error), "spans": len(spans)}
            logger.warning("tracing.collector_unreachable", extra=facts)
            return SpanExportResult.FAILURE
        return super().export(spans)


def make_provider(service: str, instance: str, *, flush_at_exit: bool) -> trace.TracerProvider:
    """Return the program's provider, or a new one that sends spans with OTLP over HTTP.

    Variables such as OTEL_SERVICE_NAME and OTEL_TRACES_SAMPLER configure it; service, instance: the default
    names. flush_at_exit: True if the process sends its last spans before it exits.
    """
    existing = trace.get_tracer_provider()
    if not isinstance(existing, trace.ProxyTracerProvider):
        return existing
    attributes = {"service.instance.id": instance}
    if "OTEL_SERVICE_NAME" not in os.environ:
        attributes["service.name"] = service
    provider = TracerProvider(resource=Resource.create(attributes), shutdown_on_exit=flush_at_exit)
    provider.add_span_processor(BatchSpanProcessor(_Exporter()))
    trace.set_tracer_provider(provider)
    return provider


class Tracing:
    """Makes spans. Thread-safe. sample_ratio: the share of operations outside of spans that start a trace."""

    def __init__(self, provider: trace.TracerProvider, sample_ratio: float) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer(_SYSTEM)
        self._sample = sample_ratio
        self._current_second = self._spans_in_second = 0

    def should_sample(self) -> bool:
        """Return True to trace a new operation: if the current span is sampled; without a span, at random."""
        current = trace.get_current_span().get_span_context()
        if current.is_valid:
            return current.trace_flags.sampled
        return random.random() < self._sample  # noqa: S311 - no secret

    def start_span(
        self,
        operation: str,
        destination: object,
        attributes: Attributes,
        *,
        parent: TraceParent | None = None,
        links: Iterable[TraceParent] = (),
        start_ns: int | None = None,
    ) -> Span:
        """Start a span, which the caller must end. Default parent: the current span; default start: now."""
        context = None
        if parent is not None:
            context = trace.set_span_in_context(NonRecordingSpan(_span_context(parent)), contexts.Context())
        return self._tracer.start_span(
            f"{operation} {destination}",
            context,
            _KINDS.get(operation, SpanKind.INTERNAL),
            {
                "messaging.system": _SYSTEM,
                "messaging.operation.name": operation,
                "messaging.destination.name": str(destination),
                **attributes,
            },
            [Link(_span_context(each)) for each in links],
            start_ns,
        )

    def record_receive(
        self, destination: object, parents: Iterable[TraceParent], about: Attributes, start_ns: int
    ) -> TraceParent | None:
        """Make a span for received messages: a child of their only context, or linked to each.

        Return its context; None if it is not sampled.
        """
        links = list(parents)
        parent = links.pop() if len(links) == 1 else None
        span = self.start_span("receive", destination, about, parent=parent, links=links, start_ns=start_ns)
        span.end()
        return traceparent_of(span)

    def record(
        self, operation: str, destination: object, parent: TraceParent, start_ns: int, attributes: Attributes
    ) -> TraceParent | None:
        """Make a span that ends now. Return its context; None if not sampled, or too many in this second."""
        second = time.monotonic_ns() // 10**9
        if second != self._current_second:
            self._current_second, self._spans_in_second = second, 0
        self._spans_in_second += 1
        if self._spans_in_second > _MAX_SPANS_PER_SECOND:
            return None
        span = self.start_span(operation, destination, attributes, parent=parent, start_ns=start_ns)
        span.end()
        return traceparent_of(span)

    def sending(
        self, groups: Sequence[TaskGroup], address: str, max_message_bytes: int
    ) -> tuple[Sequence[TaskGroup], Span]:
        """Start a span, and add its context to the messages without one, unless one would be too large.

        The caller ends the span; `with` also records an error. Without such messages, it is not recorded.
        """
        if all(MARK in group.header_data for group in groups):
            return groups, trace.INVALID_SPAN
        attributes = _attributes("send", address, sum(map(len, groups)))
        span = self.start_span("send", _destination_of(groups), attributes)
        if (entry := encode_span(span)) is not None:
            groups = [with_context(group, entry, max_message_bytes) for group in groups]
        return groups, span

    def on_received(self, arrived: ArrivedBatch, address: str) -> Callable[[], None] | None:
        """Make a span from the arrival until now, and start one span for each context in the messages.

        Return a function to call once, when the consumer has processed or abandoned the messages.
        """
        groups = arrived.groups
        counts: Counter[TraceParent] = Counter()
        count_contexts(groups, counts)
        if not counts:
            return None
        destination = _destination_of(groups)
        receive_attributes = _attributes("receive", address, sum(map(len, groups)))
        received = self.record_receive(destination, counts, receive_attributes, arrived.arrived_ns)
        links = () if received is None else [received]
        spans = []
        for context, messages in counts.items():
            attributes = _attributes("process", address, messages)
            spans.append(self.start_span("process", destination, attributes, parent=context, links=links))
        # A single span is the current one, so messages that the consumer sends belong to the same trace.
        token = contexts.attach(trace.set_span_in_context(spans[0])) if len(spans) == 1 else None

        def end() -> None:
            # Another thread or asyncio task has a separate context, in which this span is not current.
            if token is not None and trace.get_current_span() is spans[0]:
                contexts.detach(token)
            for span in spans:
                span.end()

        return end

    def current_context(self) -> bytes | None:
        """Return the current span's context as encoded headers; None without a sampled span."""
        return encode_span(trace.get_current_span())

    def use_span(self, span: Span) -> AbstractContextManager[Span]:
        """Make a span the current one in a block, record an error in it, and end it."""
        return trace.use_span(span, end_on_exit=True)

    def flush(self, seconds: float = _FLUSH_SECONDS) -> None:
        """Send the finished spans, in at most `seconds`; other providers send them automatically."""
        # In a thread, because the provider exceeds its own time limit.
        if isinstance(self._provider, TracerProvider):
            sending = threading.Thread(target=self._provider.force_flush, name="flush spans", daemon=True)
            sending.start()
            sending.join(seconds)


def _span_context(traceparent: TraceParent) -> SpanContext:
    trace_id, span_id = parse_ids(traceparent)
    flags = trace.TraceFlags(trace.TraceFlags.SAMPLED)
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=flags)


def _destination_of(groups: Iterable[TaskGroup]) -> str:
    """Return the name of a destination: the task, or a few of them."""
    known = sorted({group.task for group in groups})
    shown = ",".join(map(str, known[:_MAX_NAMED]))
    return shown if len(known) <= _MAX_NAMED else f"{shown},..."


def _attributes(operation: str, address: str, messages: int) -> Attributes:
    return {
        "messaging.operation.type": operation,
        "messaging.batch.message_count": messages,
        "server.address": address,
    }
