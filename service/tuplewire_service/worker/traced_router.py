"""A router that makes spans of messages whose senders trace them: `forward` and `queue`.

A worker passes headers on as they came. So each span has what the message carries as its parent, and those of
several workers are beside each other, in the order of their times.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from tuplewire.errors import RefusedError
from tuplewire.group import TaskGroup
from tuplewire.session.delivery import Done
from tuplewire.session.durations import Durations, Exemplar, FrameTimes
from tuplewire.session.ledger import Settled
from tuplewire.tracing.context import TraceParent, sampled
from tuplewire.tracing.spans import Attributes, Tracing, ids_of
from tuplewire_service.messaging.base import IContext, InboundSession
from tuplewire_service.worker.queue_subscription import Queue
from tuplewire_service.worker.receive_queues import ReceiveQueues
from tuplewire_service.worker.rejections import Rejections
from tuplewire_service.worker.router import Router
from tuplewire_service.worker.routing_table import LOCAL
from tuplewire_service.worker.worker_settings import WorkerSettings

Contexts = Mapping[TraceParent, int]
"""Contexts, and how many messages have each."""


class WorkerSpans:
    """Makes the spans of one worker, and the exemplars of its histograms."""

    def __init__(self, tracing: Tracing, worker_id: str) -> None:
        self._tracing = tracing
        self._worker_id = worker_id

    def passed(
        self, operation: str, task: int, contexts: Contexts, began_ns: int, attributes: Attributes
    ) -> TraceParent | None:
        """Make a span for each context, from a time until now; return the last one's own context."""
        own = None
        for context, messages in contexts.items():
            about: Attributes = {
                "tuplewire.worker": self._worker_id,
                "messaging.batch.message_count": messages,
                **attributes,
            }
            own = self._tracing.record(operation, task, context, began_ns, about) or own
        return own


def mark(durations: Durations, seconds: float, context: TraceParent) -> None:
    """Leave an example of a duration in a histogram."""
    durations.mark(Exemplar(*ids_of(context), max(0.0, seconds), time.time()))


class TracedFrameTimes(FrameTimes):
    """Leaves an example for each frame that has a message with a context."""

    __slots__ = ("_traced",)

    def __init__(self) -> None:
        super().__init__()
        self._traced: deque[tuple[int, float, TraceParent]] = deque()

    def written(
        self, sequence: int, messages: int, now: float, runs: Sequence[Sequence[TaskGroup]] = ()
    ) -> None:
        super().written(sequence, messages, now)
        if self._traced and sequence <= self._traced[-1][0]:
            return
        for group in chain.from_iterable(runs):
            if contexts := sampled(group.header_data):
                self._traced.append((sequence, now, next(iter(contexts))))
                return

    def acknowledged(self, sequence: int, now: float, into: Durations) -> None:
        super().acknowledged(sequence, now, into)
        while self._traced and self._traced[0][0] <= sequence:
            _, since, context = self._traced.popleft()
            mark(into, now - since, context)


@dataclass(slots=True, eq=False)
class Queued:
    """Messages with contexts in a task's queue.

    last: the sequence of the last one. came_ns: since 1970. span: of their time in the queue.
    """

    last: int
    came_ns: int
    accepted_micros: int
    contexts: Contexts
    span: TraceParent | None = None


class TracedQueues(ReceiveQueues):
    """Queues that know how long messages with contexts wait until a consumer first gets them."""

    def __init__(
        self,
        spans: WorkerSpans,
        settings: WorkerSettings,
        incarnation: int,
        on_done: Callable[[int, Sequence[Done]], None],
        not_here: Callable[[int], RefusedError],
        rejections: Rejections,
    ) -> None:
        super().__init__(settings, incarnation, on_done, not_here, rejections)
        self._spans = spans
        self._traced: dict[int, deque[Queued]] = {}
        self._handed_out: dict[int, deque[Queued]] = {}

    def put(self, group: TaskGroup, inbound: InboundSession) -> None:
        super().put(group, inbound)
        if contexts := sampled(group.header_data):
            queue = self._queues.get(group.task) or self._leaving[group.task]
            queued = Queued(queue.log.tail, time.time_ns(), group.accepted_micros, contexts)
            self._traced.setdefault(group.task, deque()).append(queued)

    def reached(self, queue: Queue, last: int) -> None:
        super().reached(queue, last)
        now_ns = time.time_ns()
        for each in _until(self._traced, queue.task, last):
            each.span = self._spans.passed("queue", queue.task, each.contexts, each.came_ns, {})
            if each.span is not None:
                mark(self.wait, (now_ns - each.came_ns) / 1e9, each.span)
            self._handed_out.setdefault(queue.task, deque()).append(each)

    def done_with(self, task: int) -> Iterator[Queued]:
        """Take out what a task's consumer has acknowledged since the last call."""
        queue = self._queues.get(task) or self._leaving.get(task)
        return iter(()) if queue is None else _until(self._handed_out, task, queue.log.acknowledged)

    def leave(self, tasks: Iterable[int]) -> list[tuple[TaskGroup, InboundSession]]:
        asked = list(tasks)
        left = super().leave(asked)
        for task in asked:
            if task not in self._queues and task not in self._leaving:  # it waits elsewhere now
                self._traced.pop(task, None)
                self._handed_out.pop(task, None)
        return left


def _until(by_task: dict[int, deque[Queued]], task: int, last: int) -> Iterator[Queued]:
    """Take out what ends at a sequence or before."""
    queued = by_task.get(task)
    while queued and queued[0].last <= last:
        yield queued.popleft()
    if queued is not None and not queued:
        del by_task[task]


class Forwarded:
    """Stands for the inbound session of messages with contexts until another worker has taken them over."""

    def __init__(self, inbound: InboundSession, group: TaskGroup, to: str, contexts: Contexts) -> None:
        self.source, self.sender_id = inbound.source, inbound.sender_id
        self.worker_number = inbound.worker_number
        self.wants_releases = inbound.wants_releases
        self.release = inbound.release
        self.to = to
        self.contexts = contexts
        self.began_ns = time.time_ns()
        self.left = len(group)
        """How many are not settled."""


class TracedRouter(Router):
    """A router that looks at messages with contexts, and at no others."""

    def __init__(
        self,
        tracing: Tracing,
        settings: WorkerSettings,
        incarnation: int,
        context: IContext,
        draining: Callable[[], bool],
    ) -> None:
        self._spans = WorkerSpans(tracing, settings.worker_id)
        super().__init__(settings, incarnation, context, draining)
        self.connections.pressure.frame_times = TracedFrameTimes

    def _make_queues(self, settings: WorkerSettings, incarnation: int) -> TracedQueues:
        self._traced_queues = TracedQueues(
            self._spans, settings, incarnation, self._done, self.table.not_here, self.rejections
        )
        return self._traced_queues

    def _route(self, group: TaskGroup, inbound: InboundSession) -> bool:
        if not isinstance(inbound, Forwarded) and (contexts := sampled(group.header_data)):
            to = self.place_of(group.task)
            if to != LOCAL:
                inbound = Forwarded(inbound, group, to, contexts)
        return super()._route(group, inbound)

    def _settled(self, settled: Sequence[Settled]) -> None:
        super()._settled(settled)
        for each in settled:
            token = each.token
            if isinstance(token, Forwarded):
                token.left -= each.messages
                if token.left <= 0:
                    outcome = "" if each.dropped is None else each.dropped.value
                    about: Attributes = {
                        "tuplewire.to": token.to,
                        **({"tuplewire.dropped": outcome} if outcome else {}),
                    }
                    self._spans.passed("forward", each.task, token.contexts, token.began_ns, about)

    def _done(self, task: int, done: Sequence[Done]) -> None:
        super()._done(task, done)
        now = time.time()
        for each in self._traced_queues.done_with(task):
            if each.span is not None and each.accepted_micros:
                mark(self.end_to_end, now - each.accepted_micros / 1e6, each.span)
