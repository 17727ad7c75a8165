"""The spans `forward` and `queue` of traced messages at a worker.

A worker forwards headers unchanged. Each span therefore has the context in the message as its parent, and the
spans of several workers are siblings, ordered by time. Used by worker.py. Owns the contexts of queued
messages. Call only from the event loop. Design: docs/design/traces.md.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

from tuplewire.session.durations import Durations
from tuplewire.session.ledger import SettledMessages
from tuplewire.tracing.context import TraceParent, parse_ids, sampled_contexts
from tuplewire.values.group import TaskGroup
from tuplewire_service.messaging.base import InboundSession
from tuplewire_service.worker.delivery import DeliveryLog
from tuplewire_service.worker.routing_table import LOCAL

if TYPE_CHECKING:
    from tuplewire.tracing.spans import Attributes, Tracing

_Contexts = Mapping[TraceParent, int]
"""Contexts, and the number of messages with each."""


@dataclass(slots=True, eq=False)
class _QueuedGroup:
    """Messages with contexts in a task's queue, up to `last_sequence`. `span` is their time there."""

    log: DeliveryLog
    last_sequence: int
    arrived_ns: int
    accepted_micros: int
    contexts: _Contexts
    span: TraceParent | None = None


class _TracedSession:
    """Replaces the inbound session of messages with contexts until another worker has accepted them."""

    def __init__(self, inbound: InboundSession, group: TaskGroup, to: str, contexts: _Contexts) -> None:
        self.sender_id = inbound.sender_id
        self.worker_number = inbound.worker_number
        self.awaits_releases = inbound.awaits_releases
        self.release = inbound.release
        self.destination = to
        self.contexts = contexts
        self.began_ns = time.time_ns()
        self.remaining = group.count
        """Number of messages that are not settled."""


@dataclass(eq=False, repr=False)
class WorkerObserver:
    """Records the spans of one worker, and the exemplars of its histograms."""

    tracing: Tracing
    worker_id: str
    _queued: dict[int, deque[_QueuedGroup]] = field(default_factory=dict)
    _delivered: dict[int, deque[_QueuedGroup]] = field(default_factory=dict)

    def on_queued(self, group: TaskGroup, log: DeliveryLog) -> None:
        """Record that messages were added to the log of their task."""
        if contexts := sampled_contexts(group.header_data):
            queued = _QueuedGroup(log, log.tail, time.time_ns(), group.accepted_micros, contexts)
            self._queued.setdefault(group.task, deque()).append(queued)

    def on_delivered(self, task: int, last_sequence: int, histogram: Durations) -> None:
        """Record that a consumer got messages up to `last_sequence`. `histogram` has waiting times."""
        now_ns = time.time_ns()
        for each in _pop_through(self._queued, task, last_sequence):
            each.span = self._record_spans("queue", task, each.contexts, each.arrived_ns, {})
            if each.span is not None:
                histogram.add_exemplar((now_ns - each.arrived_ns) / 1e9, parse_ids(each.span))
            self._delivered.setdefault(task, deque()).append(each)

    def on_processed(self, task: int, histogram: Durations) -> None:
        """Record that a consumer acknowledged messages. `histogram`: of end-to-end times."""
        if (queued := self._delivered.get(task)) is None:
            return
        now = time.time()
        for each in _pop_through(self._delivered, task, queued[0].log.acknowledged):
            if each.span is not None and each.accepted_micros:
                histogram.add_exemplar(now - each.accepted_micros / 1e6, parse_ids(each.span))

    def on_moved(self, task: int) -> None:
        """Record that the messages of a task have moved from its queue to another worker."""
        self._queued.pop(task, None)
        self._delivered.pop(task, None)

    def wrap_forwarded(
        self, group: TaskGroup, inbound: InboundSession, location_of: Callable[[int], str]
    ) -> InboundSession:
        """Record routed messages; return the session for on_settled(). location_of: an id or LOCAL."""
        # A rerouted message already has a pending span.
        if not isinstance(inbound, _TracedSession) and (contexts := sampled_contexts(group.header_data)):
            to = location_of(group.task)
            if to != LOCAL:
                return _TracedSession(inbound, group, to, contexts)
        return inbound

    def on_settled(self, settled: Sequence[SettledMessages]) -> None:
        """Record that another worker accepted messages, or that they were dropped."""
        for each in settled:
            inbound = each.inbound
            if isinstance(inbound, _TracedSession):
                # All messages of a group share one span, which ends with the last of them.
                inbound.remaining -= each.messages
                if inbound.remaining <= 0:
                    attributes = {"tuplewire.to": inbound.destination}
                    if each.drop_reason is not None:
                        attributes["tuplewire.dropped"] = each.drop_reason.value
                    self._record_spans("forward", each.task, inbound.contexts, inbound.began_ns, attributes)

    def find_example(self, runs: Sequence[Sequence[TaskGroup]]) -> tuple[str, str] | None:
        """Return the ids of the trace and span of a message in a frame; None if no message is traced."""
        for group in chain.from_iterable(runs):
            if contexts := sampled_contexts(group.header_data):
                return parse_ids(next(iter(contexts)))
        return None

    def _record_spans(
        self, operation: str, task: int, contexts: _Contexts, began_ns: int, attributes: Attributes
    ) -> TraceParent | None:
        """Record a span for each context, from `began_ns` until now; return the context of the last span."""
        last_span = None
        for context, messages in contexts.items():
            span_attributes: Attributes = {
                "tuplewire.worker": self.worker_id,
                "messaging.batch.message_count": messages,
                **attributes,
            }
            last_span = self.tracing.record(operation, task, context, began_ns, span_attributes) or last_span
        return last_span


def _pop_through(by_task: dict[int, deque[_QueuedGroup]], task: int, sequence: int) -> Iterator[_QueuedGroup]:
    """Remove and yield the entries that end at or before a sequence."""
    queued = by_task.get(task)
    while queued and queued[0].last_sequence <= sequence:
        yield queued.popleft()
    if queued is not None and not queued:
        del by_task[task]
