"""W3C trace context in the headers of messages, group by group; nothing of OpenTelemetry is needed here.

A context is the value of a header `traceparent`, as bytes. Only one whose sender samples its trace counts.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

from tuplewire.values.columns import to_wire
from tuplewire.values.group import TaskGroup
from tuplewire.values.headers import encode_headers

if TYPE_CHECKING:
    from opentelemetry.trace import Span

TraceParent: TypeAlias = bytes
"""Such as b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"."""

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
MARK = TRACEPARENT.encode()
"""What a group's `header_data` holds if a message of it may have a context."""
MOST_CONTEXTS = 64
"""So many contexts of one group, or batch, have spans: what strangers send decides on no more work."""
# A MessageHeader as every protobuf library writes it: its name, then a value of 55 bytes.
_SAMPLED = re.compile(rb"\x0a\x0btraceparent\x12\x37(00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f][13579bdf])")


def sampled(header_data: bytes) -> dict[TraceParent, int]:
    """Return the sampled contexts among encoded headers, and how many messages have each; the first 64."""
    if MARK not in header_data:
        return {}
    return dict(islice(Counter(_SAMPLED.findall(header_data)).items(), MOST_CONTEXTS))


def count_contexts(groups: Iterable[TaskGroup], into: Counter[TraceParent]) -> None:
    """Count the messages that have each sampled context, until there are 64 contexts or a few more."""
    for group in groups:
        if group.header_data and len(into) < MOST_CONTEXTS:
            into.update(sampled(group.header_data))


def ids_of(traceparent: TraceParent) -> tuple[str, str]:
    """Return the ids of trace and span, in hexadecimal digits."""
    _, trace_id, span_id, _ = traceparent.decode().split("-")
    return trace_id, span_id


def context_of(encoded: bytes) -> TraceParent | None:
    """Return the sampled context in one message's encoded headers."""
    found = _SAMPLED.search(encoded)
    return None if found is None else found[1]


def entry_for(traceparent: str, tracestate: str = "") -> bytes:
    """Return a context as encoded headers, which may stand behind others of the same message."""
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


def entry_of(span: Span) -> bytes | None:
    """Return a span's context as encoded headers; None if it is not sampled."""
    traceparent = traceparent_of(span)
    if traceparent is None:
        return None
    return entry_for(traceparent.decode(), span.get_span_context().trace_state.to_header())


def with_entry(group: TaskGroup, entry: bytes, max_message_bytes: int) -> TaskGroup:
    """Return a group whose messages have a context, each the same.

    A group that has one, or a message that would be too large with it, stays as it is.
    """
    if MARK in group.header_data or max(group.message_sizes(), default=0) + len(entry) > max_message_bytes:
        return group
    encoded = group.encoded_headers()
    if encoded is None:
        lengths = to_wire(array("I", [len(entry)]) * len(group))
        return replace(group, header_lengths=lengths, header_data=entry * len(group))
    return with_headers(group, [each + entry for each in encoded])


def with_headers(group: TaskGroup, headers: Sequence[bytes]) -> TaskGroup:
    """Return a group with these headers, encoded, one for each message, in place of its own."""
    lengths = to_wire(array("I", map(len, headers)))
    return replace(group, header_lengths=lengths, header_data=b"".join(headers))
