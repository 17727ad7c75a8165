"""The spans of this process. OpenTelemetry's SDK sends them, unless the program has its own provider.

Used by the observers of programs, workers, topologies and Spark's rows. Owns the tracer and the limit of
spans a second. Thread-safe. Design: docs/design/traces.md.
"""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
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

from tuplewire.text.events import event_logger
from tuplewire.tracing.context import TraceParent, encode_span, parse_ids, traceparent_of

logger = event_logger(__name__)

Attributes = Mapping[str, AttributeValue]
_SYSTEM = "tuplewire"
_MAX_SPANS_PER_SECOND = 2000
"""The maximum number of spans of record() in a second: bounds the work that senders cause in a worker."""
_FLUSH_SECONDS = 2.0
_CONNECT_SECONDS = 0.5
_RETRY_SECONDS = 5.0  # the interval of OpenTelemetry's batches
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
        around = trace.get_current_span().get_span_context()
        if around.is_valid:
            return around.trace_flags.sampled
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
        around = None
        if parent is not None:
            around = trace.set_span_in_context(NonRecordingSpan(_span_context(parent)), contexts.Context())
        return self._tracer.start_span(
            f"{operation} {destination}",
            around,
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


class ProcessSpans:
    """A consumer's processing of one batch: a span for each context in the batch.

    With a single context, its span is the current one during the processing, so messages that the consumer
    sends belong to the same trace.
    """

    def __init__(self, spans: Sequence[Span]) -> None:
        self._spans = spans
        self._token = contexts.attach(trace.set_span_in_context(spans[0])) if len(spans) == 1 else None

    def end(self) -> None:
        """End the spans: the consumer has processed the batch, or abandoned it."""
        # Another thread or asyncio task has a separate context, in which this span is not current.
        if self._token is not None and trace.get_current_span() is self._spans[0]:
            contexts.detach(self._token)
        self._token = None
        spans, self._spans = self._spans, ()
        for span in spans:
            span.end()
