"""The two ends of a program that makes spans, in place of those of one that does not."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from opentelemetry.trace import Span, SpanKind

from tuplewire import aio
from tuplewire.batch import TaskMessageBatch
from tuplewire.connection.receiver import Receiver
from tuplewire.connection.sender import Sender
from tuplewire.group import TaskGroup
from tuplewire.session.consume import Arrived, ConsumeWindow
from tuplewire.session.delivery import Delivery
from tuplewire.subscription import BaseSubscription, Subscription
from tuplewire.tracing.context import MARK, MOST_CONTEXTS, TraceParent, sampled, with_entry
from tuplewire.tracing.spans import Attributes, Processing, Tracing, entry_of, fail, traceparent_of

_MOST_NAMED = 3


def destination_of(tasks: Iterable[int]) -> str:
    """Return the name of a destination: the task, or a few of them."""
    known = sorted(set(tasks))
    shown = ",".join(map(str, known[:_MOST_NAMED]))
    return shown if len(known) <= _MOST_NAMED else f"{shown},..."


def _counted(operation: str, address: str, messages: int) -> Attributes:
    return {
        "messaging.operation.type": operation,
        "messaging.batch.message_count": messages,
        "server.address": address,
    }


class TracedSender(Sender):
    """A session whose messages get a context, where they belong to a trace and have none.

    A message sent alone that is not sampled goes the short way; one that is, the way of batches.
    """

    def __init__(self, tracing: Tracing, *session: Any) -> None:
        super().__init__(*session)
        self._tracing = tracing
        self._chosen: set[int] = set()
        """Threads whose message send_one() has left to the other ways, to be traced."""

    def send_one(self, task: Any, payload: Any, source: int | None = None) -> bool:
        if self._tracing.samples():
            self._chosen.add(threading.get_ident())
            return False
        return super().send_one(task, payload, source)

    def send(self, groups: Sequence[TaskGroup], /, *, timeout: float | None = None) -> None:
        span, groups = self._begin(groups)
        try:
            super().send(groups, timeout=timeout)
        except BaseException as error:
            _end(span, error)
            raise
        _end(span)

    async def send_async(self, groups: Sequence[TaskGroup], timeout: float | None = None) -> None:
        span, groups = self._begin(groups)
        try:
            await super().send_async(groups, timeout)
        except BaseException as error:
            _end(span, error)
            raise
        _end(span)

    def offer(self, groups: Sequence[TaskGroup], token: Any = None, *, retain: bool = False) -> bool:
        span, groups = self._begin(groups)
        accepted = super().offer(groups, token, retain=retain)
        if accepted:  # otherwise nothing was done; what does not end is never seen
            _end(span)
        return accepted

    def _begin(self, groups: Sequence[TaskGroup]) -> tuple[Span | None, Sequence[TaskGroup]]:
        """Begin a span, and give its context to the messages that have none; None if nothing is to be."""
        me = threading.get_ident()
        chosen = me in self._chosen
        self._chosen.discard(me)
        if all(MARK in group.header_data for group in groups) or not (chosen or self._tracing.samples()):
            return None, groups
        span = self._tracing.begin(
            "send",
            destination_of(group.task for group in groups),
            SpanKind.PRODUCER,
            _counted("send", self.address, sum(map(len, groups))),
        )
        entry = entry_of(span)
        if entry is None:
            return span, groups
        return span, [with_entry(group, entry, self._window.max_message_bytes) for group in groups]


def _end(span: Span | None, error: BaseException | None = None) -> None:
    if span is not None:
        if error is not None:
            fail(span, error)
        span.end()


@dataclass(frozen=True, slots=True)
class TimedArrived(Arrived):
    """Messages, and when they came; nanoseconds since 1970."""

    at_ns: int = 0


class TimedWindow(ConsumeWindow):
    """Notes when messages come."""

    def arrived(self, deliveries: Iterable[Delivery], *, asks: bool = False) -> Arrived:
        arrived = super().arrived(deliveries, asks=asks)
        return TimedArrived(arrived.epoch, arrived.deliveries, arrived.asks, time.time_ns())


class TracedReceiver(Receiver):
    """A receiver that knows when messages came."""

    window_type = TimedWindow


class _Traces(BaseSubscription):
    """Makes the spans of a consumer: `receive`, from arrival to the program, and `process`."""

    def __init__(self, tracing: Tracing, receiver: Receiver, timeout: float | None) -> None:
        super().__init__(receiver, timeout)
        self._tracing = tracing
        self._processing: Processing | None = None

    def acknowledge(self, messages: int | None = None) -> None:
        self._processed()
        super().acknowledge(messages)

    def _begin(self, arrived: Arrived, most: int) -> TaskMessageBatch:
        self._received(arrived)
        return super()._begin(arrived, most)

    def _batch_of(self, arrived: Arrived | None) -> TaskMessageBatch:
        batch = super()._batch_of(arrived)
        if arrived is not None:
            self._received(arrived)
        return batch

    def _received(self, arrived: Arrived) -> None:
        found: Counter[TraceParent] = Counter()
        for group in arrived.groups:
            if group.header_data and len(found) < MOST_CONTEXTS:
                found.update(sampled(group.header_data))
        if not found:
            return
        groups, address = arrived.groups, self._receiver.address
        destination = destination_of(group.task for group in groups)
        alone = next(iter(found)) if len(found) == 1 else None
        came = self._tracing.begin(
            "receive",
            destination,
            SpanKind.CONSUMER,
            _counted("receive", address, sum(map(len, groups))),
            parent=alone,
            links=() if alone else found,
            start_ns=arrived.at_ns if isinstance(arrived, TimedArrived) else None,
        )
        came.end()
        received = traceparent_of(came)
        self._processing = Processing(
            [
                self._tracing.begin(
                    "process",
                    destination,
                    SpanKind.CONSUMER,
                    _counted("process", address, messages),
                    parent=context,
                    links=() if received is None else [received],
                )
                for context, messages in found.items()
            ]
        )

    def _processed(self) -> None:
        processing, self._processing = self._processing, None
        if processing is not None:
            processing.end()


class TracedSubscription(_Traces, Subscription):
    """A subscription that makes spans; what is processed ends with its acknowledgement."""

    def close(self) -> None:
        self._processed()
        super().close()


class TracedAsyncSubscription(_Traces, aio.Subscription):
    """The same for asyncio."""

    async def close(self) -> None:
        self._processed()
        await super().close()
