"""What stands between a bound connection and whoever takes its messages; the same for all our transports."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence

from tuplewire.errors import ClosedError, RefusedError
from tuplewire.session.departure import Departure
from tuplewire.text.events import event_logger
from tuplewire.text.log_rate import LogRate
from tuplewire.values.group import TaskGroup, route_of
from tuplewire.values.message import SHUTDOWN, TaskMessage
from tuplewire_service.messaging.base import (
    BLOCK,
    IConnectionCallback,
    IServerConnection,
    ReceiveCount,
    ReceivedBatch,
)
from tuplewire_service.messaging.receiving_end import Session

logger = event_logger(__name__)

OTHER = "other"
"""Stands for all that is not counted apart."""
MAX_SOURCES = 1000
"""Sources that are counted apart; bounds what hostile senders make us remember."""


class Reception(IConnectionCallback):
    """Counts what arrives, and hands it to a callback, or holds it for `pull`, one message at a time.

    A transport takes nothing in until somebody is there to take it (`open`): what waits stays with its
    sender, unacknowledged, so that the callback's refusals reach the sender whenever the callback comes. What
    waits here for `pull` is bounded by the senders' credit: it is not released. Thread-safe, but for count()
    and deliver(), which one thread calls at a time.
    """

    def __init__(self, on_open: Callable[[], object]) -> None:
        """Start closed to messages.

        on_open: called once, when a callback is registered, or pull() is called for the first time.
        """
        self.refused_messages: Counter[str] = Counter()
        """How many, by the error's code."""
        self.callback: IConnectionCallback = self
        """Gets what arrives: this object, for `pull`, while nobody else is registered."""
        self._received: dict[str, list[int]] = {}
        self._arrival = threading.Condition()
        self._batches: deque[ReceivedBatch] = deque()
        self._position = 0
        self._on_open = on_open
        self._pulled = False
        self._closed = False
        self._log_rate = LogRate()

    @property
    def open(self) -> bool:
        """Whether somebody takes what arrives."""
        return self.callback is not self or self._pulled

    # --- for the transport ---------------------------------------------------------------------------

    def worker_is(self, number: int, *, connected: bool) -> None:
        """Tell the callback that a worker is connected, or is lost; 0: it is a program."""
        if number and self.callback is not self:
            self.callback.worker_is(number, connected=connected)

    def workers_left(self, departures: Sequence[Departure]) -> None:
        """Tell the callback of workers that have ended in good order."""
        if self.callback is not self:
            self.callback.workers_left(departures)

    def counts(self) -> list[ReceiveCount]:
        """Return what has arrived, by source."""
        return [ReceiveCount(source, *counts) for source, counts in list(self._received.items())]

    def forget(self, source: str) -> None:
        """Forget what has arrived from a worker that is gone."""
        self._received.pop(source, None)

    def count(self, source: str, groups: Sequence[TaskGroup]) -> None:
        """Count a frame."""
        if source not in self._received and len(self._received) >= MAX_SOURCES:
            source = OTHER
        counts = self._received.setdefault(source, [0, 0, 0])
        counts[0] += sum(map(len, groups))
        counts[1] += 1
        counts[2] += sum(group.size_bytes for group in groups)

    def deliver(
        self, end: Session, sequence: int, groups: Sequence[TaskGroup], assignment_version: int
    ) -> None:
        """Hand over what a frame had that was accepted; its session learns what is refused or done with."""
        for forwarded, some in _by_forwarded(groups).items():
            batch = ReceivedBatch.arrived(some, end.inbound(forwarded), assignment_version)
            try:
                self.callback.recv(batch)
            except Exception as defect:
                if failures := self._log_rate.due(type(defect).__qualname__):
                    extra = {"peer": end.source, "failures": failures}
                    logger.exception("callback.failed", extra=extra)
                error = RefusedError("the receiver failed; its log says why")
                batch.refusals = [(group, error) for group in some]
            for group, error in batch.refusals:
                self.refused_messages[error.code] += len(group)
            refused = {id(group) for group, _ in batch.refusals}
            done = () if batch.held else [group for group in some if id(group) not in refused]
            end.state.delivered(sequence, batch.refusals, done)

    # --- for whoever takes messages ------------------------------------------------------------------

    def register(self, callback: IConnectionCallback) -> None:
        """Deliver to the callback from now on; ClosedError when something else takes the messages."""
        with self._arrival:
            if self.open:
                other = "recv() takes" if self._pulled else "another callback gets"
                raise ClosedError(f"{other} this connection's messages; bind another port for this callback")
            self.callback = callback
        self._on_open()

    def recv(self, batch: ReceivedBatch) -> None:
        with self._arrival:
            batch.hold()
            self._batches.append(batch)
            self._arrival.notify_all()

    def pull(self, flags: int) -> TaskMessage | None:
        """Return the next message; flags as in IServerConnection.recv."""
        with self._arrival:
            if self.callback is not self:
                raise ClosedError("a callback is registered: messages go there, recv() gets none")
            first, self._pulled = not self._pulled, True
        if first:
            self._on_open()
        with self._arrival:
            if flags == BLOCK:
                self._arrival.wait_for(lambda: self._batches or self._closed)
            if not self._batches:
                return SHUTDOWN if self._closed else None
            batch = self._batches[0]
            message = batch[self._position]
            self._position += 1
            if self._position == len(batch):
                self._batches.popleft()
                self._position = 0
        batch.inbound.release(message.task, 1, len(message.message))
        return message

    def close(self) -> None:
        """Give the shutdown notice to whoever pulls, once nothing is left."""
        with self._arrival:
            self._closed = True
            self._arrival.notify_all()


def _by_forwarded(groups: Sequence[TaskGroup]) -> dict[int, Sequence[TaskGroup]]:
    """Return the groups apart by the worker that they came by; all have one, nearly always."""
    routes = dict.fromkeys(route_of(group.forwarded) for group in groups)
    if len(routes) == 1:
        return dict.fromkeys(routes, groups)
    return {route: [group for group in groups if route_of(group.forwarded) == route] for route in routes}


class ReceiveMetric:
    """Counts of one server connection since this object was last asked; each poller has one of its own.

    The server's own counts only grow (`statistics()`) for as long as a source is there, so that pollers take
    nothing from each other. Not thread-safe. Source: Storm's `IMetric.getValueAndReset`, and the counts by
    source of its `Server`.
    """

    def __init__(self, server: IServerConnection) -> None:
        """Begin with what the server has received so far: the first value has all of it."""
        self._server = server
        self._before: dict[str, ReceiveCount] = {}

    def get_value_and_reset(self) -> dict[str, ReceiveCount]:
        """Return what each source has sent since the last call; a source that sent nothing is left out."""
        counts = {count.source: count for count in self._server.statistics().received}
        before, self._before = self._before, counts
        nothing = ReceiveCount("", 0, 0, 0)
        value = {}
        for source, now in counts.items():
            then = before.get(source, nothing)
            if now.batches < then.batches:  # it was gone for so long that it was forgotten
                then = nothing
            if now.batches != then.batches:
                value[source] = ReceiveCount(
                    source,
                    now.messages - then.messages,
                    now.batches - then.batches,
                    now.bytes - then.bytes,
                )
        return value
