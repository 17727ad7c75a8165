"""W3C trace context in the headers of messages, group by group; does not need OpenTelemetry.

A context is the value of a header `traceparent`, as bytes. Contexts that are not sampled are ignored. Used by
the observers of programs, workers, topologies and Spark's rows. Owns no state. Thread-safe.
Design: docs/design/traces.md.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

from tuplewire.values.group import TaskGroup
from tuplewire.values.headers import encode_headers

if TYPE_CHECKING:
    from opentelemetry.trace import Span

TraceParent: TypeAlias = bytes
"""A context, such as b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"."""

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
MARK = TRACEPARENT.encode()
"""The bytes in a group's `header_data` if one of its messages may have a context."""
MAX_CONTEXTS = 64
"""The maximum number of contexts of a group or batch with spans: it bounds the work that senders cause."""
# A MessageHeader as every protobuf library encodes it: the name, then a value of 55 bytes.
_SAMPLED = re.compile(rb"\x0a\x0btraceparent\x12\x37(00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f][13579bdf])")


def sampled_contexts(header_data: bytes) -> dict[TraceParent, int]:
    """Return the first 64 sampled contexts in encoded headers, with the number of messages of each."""
    if MARK not in header_data:  # the usual case, without a search by a regular expression
        return {}
    return dict(islice(Counter(_SAMPLED.findall(header_data)).items(), MAX_CONTEXTS))


def count_contexts(groups: Iterable[TaskGroup], counts: Counter[TraceParent]) -> None:
    """Count the messages with each sampled context; stop after the group with the 64th context."""
    for group in groups:
        if group.header_data and len(counts) < MAX_CONTEXTS:
            counts.update(sampled_contexts(group.header_data))


def parse_ids(traceparent: TraceParent) -> tuple[str, str]:
    """Return the trace ID and the span ID, in hexadecimal digits."""
    _, trace_id, span_id, _ = traceparent.decode().split("-")
    return trace_id, span_id


def context_of(encoded: bytes) -> TraceParent | None:
    """Return the sampled context in one message's encoded headers, or None."""
    found = _SAMPLED.search(encoded)
    return None if found is None else found[1]


def encode_context(traceparent: str, tracestate: str = "") -> bytes:
    """Return a context as encoded headers, which may follow other headers of the same message."""
    headers = [(TRACEPARENT, traceparent.encode())]
    if tracestate:
        headers.append((TRACESTATE, tracestate.encode()))
    return encode_headers(None, headers)


def traceparent_of(span: Span) -> TraceParent | None:
    """Return a span's context; None if it is not sampled."""
    own = span.get_span_context()
    if not own.trace_flags.sampled:
        return None
    return f"00-{own.trace_id:032x}-{own.span_id:016x}-{own.trace_flags:02x}".encode()


def encode_span(span: Span) -> bytes | None:
    """Return a span's context as encoded headers; None if it is not sampled."""
    traceparent = traceparent_of(span)
    if traceparent is None:
        return None
    return encode_context(traceparent.decode(), span.get_span_context().trace_state.to_header())


def with_context(group: TaskGroup, entry: bytes, max_message_bytes: int) -> TaskGroup:
    """Return the group with the same context in all its messages.

    Return it unchanged if it has a context already, or if a message would exceed max_message_bytes.
    """
    if MARK in group.header_data or max(group.message_sizes(), default=0) + len(entry) > max_message_bytes:
        return group
    headers = group.encoded_headers() or [b""] * group.count
    return group.with_headers([each + entry for each in headers])
