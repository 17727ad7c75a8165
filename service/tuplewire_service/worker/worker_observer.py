"""The spans `forward` and `queue` of traced messages at a worker.

A worker forwards headers unchanged. Each span therefore has the context in the message as its parent, and the
spans of several workers are siblings, ordered by time. Used by worker.py. Owns the contexts of queued
messages. Call only from the event loop. Design: docs/design/traces.md.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from tuplewire.session.durations import Durations
from tuplewire.session.ledger import Settled
from tuplewire.tracing.context import TraceParent, ids_of, sampled
from tuplewire.values.group import TaskGroup
from tuplewire_service.messaging.base import InboundSession
from tuplewire_service.worker.delivery import DeliveryLog
from tuplewire_service.worker.routing_table import LOCAL

if TYPE_CHECKING:
    from tuplewire.tracing.spans import Attributes, Tracing

_Contexts = Mapping[TraceParent, int]
"""Contexts, and the number of messages with each."""


@dataclass(slots=True, eq=False)
class _Queued:
    """Messages with contexts in a task's queue, up to the sequence `last`. `span` is their time there."""

    log: DeliveryLog
    last: int
    came_ns: int
    accepted_micros: int
    contexts: _Contexts
    span: TraceParent | None = None


class _Forwarded:
    """Replaces the inbound session of messages with contexts until another worker has accepted them."""

    def __init__(self, inbound: InboundSession, group: TaskGroup, to: str, contexts: _Contexts) -> None:
        self.sender_id = inbound.sender_id
        self.worker_number = inbound.worker_number
        self.needs_release_acks = inbound.needs_release_acks
        self.release = inbound.release
        self.to = to
        self.contexts = contexts
        self.began_ns = time.time_ns()
        self.left = group.count
        """Number of messages that are not settled."""


class WorkerObserver:
    """Records the spans of one worker, and the exemplars of its histograms."""

    def __init__(self, tracing: Tracing, worker_id: str) -> None:
        self._tracing = tracing
        self._worker_id = worker_id
        self._queued: dict[int, deque[_Queued]] = {}
        self._handed_out: dict[int, deque[_Queued]] = {}

    def queued(self, group: TaskGroup, log: DeliveryLog) -> None:
        """Record that messages were added to the log of their task."""
        if contexts := sampled(group.header_data):
            queued = _Queued(log, log.tail, time.time_ns(), group.accepted_micros, contexts)
            self._queued.setdefault(group.task, deque()).append(queued)

    def delivered(self, task: int, last: int, into: Durations) -> None:
        """Record that a consumer got the messages up to the sequence `last`. `into` counts waiting times."""
        now_ns = time.time_ns()
        for each in _until(self._queued, task, last):
            each.span = self._passed("queue", task, each.contexts, each.came_ns, {})
            if each.span is not None:
                into.mark((now_ns - each.came_ns) / 1e9, ids_of(each.span))
            self._handed_out.setdefault(task, deque()).append(each)

    def processed(self, task: int, into: Durations) -> None:
        """Record that a consumer acknowledged messages. `into` counts end-to-end times."""
        if (queued := self._handed_out.get(task)) is None:
            return
        now = time.time()
        for each in _until(self._handed_out, task, queued[0].log.acknowledged):
            if each.span is not None and each.accepted_micros:
                into.mark(now - each.accepted_micros / 1e6, ids_of(each.span))

    def left(self, task: int) -> None:
        """Record that the messages of a task have moved from its queue to another worker."""
        self._queued.pop(task, None)
        self._handed_out.pop(task, None)

    def forwarded(
        self, group: TaskGroup, inbound: InboundSession, place_of: Callable[[int], str]
    ) -> InboundSession:
        """Record routed messages; return the session for settled(). place_of: returns the owner of a task."""
        # A rerouted message already has a pending span.
        if not isinstance(inbound, _Forwarded) and (contexts := sampled(group.header_data)):
            to = place_of(group.task)
            if to != LOCAL:
                return _Forwarded(inbound, group, to, contexts)
        return inbound

    def settled(self, settled: Sequence[Settled]) -> None:
        """Record that another worker accepted messages, or that they were dropped."""
        for each in settled:
            inbound = each.inbound
            if isinstance(inbound, _Forwarded):
                # All messages of a group share one span, which ends with the last of them.
                inbound.left -= each.messages
                if inbound.left <= 0:
                    about = {"tuplewire.to": inbound.to}
                    if each.dropped is not None:
                        about["tuplewire.dropped"] = each.dropped.value
                    self._passed("forward", each.task, inbound.contexts, inbound.began_ns, about)

    def example(self, runs: Sequence[Sequence[TaskGroup]]) -> tuple[str, str] | None:
        """Return the ids of the trace and span of a message in a frame; None if no message is traced."""
        for group in chain.from_iterable(runs):
            if contexts := sampled(group.header_data):
                return ids_of(next(iter(contexts)))
        return None

    def _passed(
        self, operation: str, task: int, contexts: _Contexts, began_ns: int, attributes: Attributes
    ) -> TraceParent | None:
        """Record a span for each context, from `began_ns` until now; return the context of the last span."""
        own = None
        for context, messages in contexts.items():
            about: Attributes = {
                "tuplewire.worker": self._worker_id,
                "messaging.batch.message_count": messages,
                **attributes,
            }
            own = self._tracing.record(operation, task, context, began_ns, about) or own
        return own


def _until(by_task: dict[int, deque[_Queued]], task: int, last: int) -> Iterator[_Queued]:
    """Remove and yield the entries that end at or before a sequence."""
    queued = by_task.get(task)
    while queued and queued[0].last <= last:
        yield queued.popleft()
    if queued is not None and not queued:
        del by_task[task]
