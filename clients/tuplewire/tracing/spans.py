"""The spans of this process, by OpenTelemetry's API; its SDK sends them, unless the program has its own.

Design: docs/design/traces.md.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode
from opentelemetry.util.types import AttributeValue

from tuplewire.tracing.context import TraceParent, entry_of, ids_of, traceparent_of

Attributes = Mapping[str, AttributeValue]
_SYSTEM = "tuplewire"
_MOST_A_SECOND = 2000
"""So many spans of what passes by are made in a second: senders decide on no more of a worker's work."""
_FLUSH_SECONDS = 2.0
_KINDS = {
    "send": SpanKind.PRODUCER,
    "emit": SpanKind.PRODUCER,
    "receive": SpanKind.CONSUMER,
    "process": SpanKind.CONSUMER,
    "execute": SpanKind.CONSUMER,
}
"""By operation; the others are internal."""


def make_provider(service: str, instance: str, *, flush_at_exit: bool) -> trace.TracerProvider:
    """Return the provider that the program has set, or one that sends spans by OTLP over HTTP.

    Variables such as OTEL_SERVICE_NAME and OTEL_TRACES_SAMPLER say how; service, instance: the default names.
    flush_at_exit: whether the process's end waits for its spans, be the collector there or not.
    """
    known = trace.get_tracer_provider()
    if not isinstance(known, trace.ProxyTracerProvider):
        return known
    attributes = {"service.instance.id": instance}
    if "OTEL_SERVICE_NAME" not in os.environ:
        attributes["service.name"] = service
    provider = TracerProvider(resource=Resource.create(attributes), shutdown_on_exit=flush_at_exit)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return provider


class Tracing:
    """Makes spans. Thread-safe.

    sample: of what begins outside of any span, how much begins a trace.
    """

    def __init__(self, provider: trace.TracerProvider, sample: float) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer(_SYSTEM)
        self._sample = sample
        self._second = self._made = 0

    def samples(self) -> bool:
        """Whether what begins now is traced: as the span around it is, or by chance where there is none."""
        around = trace.get_current_span().get_span_context()
        if around.is_valid:
            return around.trace_flags.sampled
        return random.random() < self._sample  # noqa: S311 - no secret

    def begin(
        self,
        operation: str,
        destination: object,
        attributes: Attributes,
        *,
        parent: TraceParent | None = None,
        links: Iterable[TraceParent] = (),
        start_ns: int | None = None,
    ) -> Span:
        """Begin a span, to be ended by the caller.

        parent: None: the span around, if there is one. start_ns: since 1970; None: now.
        """
        return self._tracer.start_span(
            f"{operation} {destination}",
            None if parent is None else _around(parent),
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

    def receive(
        self, destination: object, found: Iterable[TraceParent], attributes: Attributes, start_ns: int
    ) -> Span:
        """Make a span of what was received up to now: a child of its only context, or linked to each."""
        links = list(found)
        parent = links[0] if len(links) == 1 else None
        span = self.begin(
            "receive",
            destination,
            attributes,
            parent=parent,
            links=() if parent else links,
            start_ns=start_ns,
        )
        span.end()
        return span

    def record(
        self, operation: str, destination: object, parent: TraceParent, start_ns: int, attributes: Attributes
    ) -> TraceParent | None:
        """Make a span of what has passed by, up to now; None where there are too many, or it is not sampled.

        Returns the span's own context.
        """
        second = time.monotonic_ns() // 10**9
        if second != self._second:
            self._second, self._made = second, 0
        self._made += 1
        if self._made > _MOST_A_SECOND:
            return None
        span = self.begin(operation, destination, attributes, parent=parent, start_ns=start_ns)
        span.end()
        return traceparent_of(span)

    def current_entry(self) -> bytes | None:
        """Return the context of the span around as encoded headers; None if there is none that is sampled."""
        return entry_of(trace.get_current_span())

    @contextmanager
    def around(self, span: Span) -> Iterator[None]:
        """Have a span around what is done here, and end it then; an error is noted in it."""
        token = contexts.attach(trace.set_span_in_context(span))
        try:
            yield
        except BaseException as error:
            fail(span, error)
            raise
        finally:
            contexts.detach(token)
            span.end()

    def flush(self, seconds: float = _FLUSH_SECONDS) -> None:
        """Send the spans that have ended, for at most so long; another kind of provider does so by itself."""
        if isinstance(self._provider, TracerProvider):  # whose own time limit does not hold
            sending = threading.Thread(target=self._provider.force_flush, name="flush spans", daemon=True)
            sending.start()
            sending.join(seconds)


def fail(span: Span, error: BaseException) -> None:
    """Note in a span that what it stands for has failed."""
    span.record_exception(error)
    span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))


def _span_context(traceparent: TraceParent) -> SpanContext:
    trace_id, span_id = ids_of(traceparent)
    flags = trace.TraceFlags(trace.TraceFlags.SAMPLED)
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=flags)


def _around(traceparent: TraceParent) -> contexts.Context:
    return trace.set_span_in_context(NonRecordingSpan(_span_context(traceparent)), contexts.Context())


class Processing:
    """What a consumer does with the messages of one batch that have contexts: a span for each context.

    Where there is one context alone, its span is around what the consumer does: what it sends meanwhile
    belongs to the same trace.
    """

    def __init__(self, spans: Sequence[Span]) -> None:
        self._spans = spans
        self._token = contexts.attach(trace.set_span_in_context(spans[0])) if len(spans) == 1 else None

    def end(self) -> None:
        """Say that the consumer is done with them, or has left them."""
        # Another thread, or task, has a context of its own.
        if self._token is not None and trace.get_current_span() is self._spans[0]:
            contexts.detach(self._token)
        self._token = None
        spans, self._spans = self._spans, ()
        for span in spans:
            span.end()
