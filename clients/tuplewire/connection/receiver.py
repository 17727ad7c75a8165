"""A consuming session with one worker: it reads messages, acknowledges them, and reconnects.

The loop reads frames into a buffer that the prefetch settings bound. One thread (or coroutine) at a time
takes batches from it and acknowledges them. The executors of topologies get the batches from the loop
instead (Push). Used by clients, their subscriptions and the dead-letter command. Owns the buffer, the consume
window and the stream. Thread-safe, except the methods for the loop.
Design: docs/design/sessions.md.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Container, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tuplewire.connection.grpc_channel import ANY_SIZE
from tuplewire.connection.reconnecting_stream import Identity, ReconnectingStream
from tuplewire.connection.stream import BatchedEvent, ClientStream, StreamOpener
from tuplewire.connection.submission_queue import CallerCondition
from tuplewire.errors import ClosedError, TuplewireError, UnreachableError, refused
from tuplewire.session.consume import Arrived, ConsumeWindow, Rejected
from tuplewire.session.delivery import Delivery
from tuplewire.settings.config import PROTOCOL_VERSION, RejectOrder, SessionSettings
from tuplewire.text.events import event_logger
from tuplewire.values.group import TaskGroup
from tuplewire.wire import messaging_pb2 as pb
from tuplewire.wire.codec import decode, groups_of
from tuplewire.wire.opaque_pb2 import OpaqueFrame
from tuplewire.wire.translate import code_name

logger = event_logger(__name__)

_FAREWELL_SECONDS = 3.0
"""The time in which a closed subscription tries to report its last acknowledgements."""


Arrive = Callable[[TaskGroup, Callable[[], None]], None]
Fail = Callable[[TuplewireError], None]


@dataclass(frozen=True, slots=True)
class Push:
    """Functions that get messages instead of the buffer. Called on the event loop, so they must not block.

    Attributes:
        receive: Called with each group, in order, and a function that acknowledges it, from any thread.
        failed: Called once, with the error after which nothing more arrives.
    """

    receive: Arrive
    failed: Fail


class Receiver(ReconnectingStream):
    """One subscription to tasks of one worker. Thread-safe, except the methods below "on the loop"."""

    method = "Recv"

    def __init__(
        self,
        address: str,
        identity: Identity,
        tasks: Iterable[int],
        settings: SessionSettings,
        loop: asyncio.AbstractEventLoop,
        open_stream: StreamOpener,
        receiver_id: str = "",
        push: Push | None = None,
    ) -> None:
        """Describe a subscription. `push` gets the messages; None: take() returns them."""
        super().__init__(address, identity, settings, loop, open_stream, receiver_id)
        self._push = push
        self.failed: TuplewireError | None = None
        self._number = secrets.randbits(63)
        self._lock = threading.Lock()
        self._moved = CallerCondition(self._lock)
        self.tasks = tuple(tasks)
        self._window = ConsumeWindow(self.tasks, settings.prefetch_messages, settings.prefetch_bytes)
        self._buffer: deque[Arrived] = deque()
        self._progress = asyncio.Event()
        self._acknowledgements = BatchedEvent(self._progress, loop)
        self._report_scheduled = False
        """True if the loop is about to report acknowledgements: it does not need another wake-up."""
        self._acknowledged = self._known = 0
        """The number of acknowledgements, and the number that the worker has certainly received."""
        self._said_goodbye = False
        self._broken_since = time.monotonic()
        self._not_admitted = False
        """True if the worker has not accepted this consumer within connect_seconds."""
        self._patience: asyncio.TimerHandle | None = None

    @property
    def state(self) -> str:
        """The state of the subscription, as text."""
        if self.over:
            return "closed"
        if self.failed is not None:
            return f"ended: {self.failed}"
        return self.connection

    def __repr__(self) -> str:
        return f"<Receiver {self.address} buffered={len(self._buffer)} {self.state}>"

    # --- for consumers -----------------------------------------------------------------------

    def take(self, timeout: float | None = None) -> Arrived | None:
        """Return the next batch, or None after `timeout` seconds. Do not call this on the event loop.

        Without a timeout, wait indefinitely once the worker has accepted this consumer. Raises ClosedError if
        closed, or the error that ended the subscription. Raises UnreachableError if the worker was
        unreachable for the whole timeout; without a timeout, if it has not accepted this consumer within
        connect_seconds.
        """
        with self._lock:
            found = self._moved.wait_for(partial(self._next, timeout), timeout)
        return found or self._none_after(timeout)

    async def take_async(self, timeout: float | None = None) -> Arrived | None:
        """Do the same as take, on any event loop. A cancelled call takes no batch."""
        found = await self._moved.wait_for_async(partial(self._next, timeout), timeout)
        return found or self._none_after(timeout)

    def _next(self, timeout: float | None) -> Arrived | None:
        if self._buffer:
            return self._buffer.popleft()
        if self.failed is not None:
            raise self.failed
        if self.over:
            raise ClosedError(f"the subscription at {self.address} is closed")
        if timeout is None and self._not_admitted:
            raise self._unreachable(self._settings.connect_seconds)
        return None

    def _none_after(self, timeout: float | None) -> Arrived | None:
        # A connection without messages is not an error, even if it existed only for a part of the time.
        if not self.connected and timeout is not None and time.monotonic() - self._broken_since >= timeout:
            raise self._unreachable(timeout)
        return None

    def _unreachable(self, seconds: float) -> UnreachableError:
        return UnreachableError(f"no worker at {self.address} for {seconds:g} s: {self._last_problem}")

    @property
    def rejects_wait(self) -> bool:
        """True if later messages of a task wait for a rejected one."""
        return self._settings.reject_order is RejectOrder.WAIT

    def acknowledge(self, arrived: Arrived, rejected: Sequence[Rejected] = ()) -> None:
        """Acknowledge a batch; ignore it if its worker has failed since.

        rejected: the rejected messages of the batch, in order; see ConsumeWindow.acknowledge.
        """
        with self._lock:
            counts = self._window.acknowledge(arrived, rejected)
            if counts and rejected:
                self._discard_received(self._window.waiting())
            if not counts or self.over:
                return
            self._acknowledged += 1
            if self._report_scheduled and not arrived.ack_requested:  # the report in progress includes it
                return
            self._report_scheduled = True
        self._loop.call_soon_threadsafe(partial(self._acknowledgements.add, at_once=arrived.ack_requested))

    def _discard_received(self, tasks: Container[int]) -> None:
        """Remove the buffered messages of these tasks: the worker delivers them again."""
        kept = (arrived.without(tasks) for arrived in self._buffer)
        self._buffer = deque(arrived for arrived in kept if arrived.deliveries)

    # --- life, on the loop ---------------------------------------------------------------------

    def start(self) -> None:
        super().start()
        # An admitted consumer waits through restarts of any length; see docs/design/sessions.md.
        if not self._admitted and math.isfinite(seconds := self._settings.connect_seconds):
            self._patience = self._loop.call_later(seconds, self._stop_waiting)

    def _stop_waiting(self) -> None:
        """Wake callers without a timeout: the worker has not accepted this consumer."""
        with self._lock:
            self._not_admitted = True
            self._moved.notify_all()
        if self._push is not None:
            self._push.failed(self._unreachable(self._settings.connect_seconds))

    def _mark_reachable(self) -> None:
        super()._mark_reachable()
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    async def close(self) -> None:
        """Close the subscription after reporting all acknowledgements, in at most three seconds.

        If the stream breaks in that time, another one is opened. After a cancelled call, the subscription is
        closed and its stream ends automatically. A second call at the same time waits in the same way.
        """
        with self._lock:
            self.over = True
            self._moved.notify_all()
        self._progress.set()
        if self._task is not None and (self.connected or self._wanted):
            await asyncio.wait([self._task], timeout=_FAREWELL_SECONDS)
        await self.suspend()

    @property
    def _wanted(self) -> bool:
        # A closed subscription still needs a stream while acknowledgements are not reported.
        return not self.over or self._known < self._acknowledged

    def resume(self) -> None:
        """Connect again after a fork."""
        if not self.over and self.failed is None:
            self.start()

    def _lost(self, error: TuplewireError) -> None:
        if self.over:
            return
        about = {"peer": self.address, "reason": str(error)}
        if self.connected:
            self._broken_since = time.monotonic()
            logger.info("subscription.lost", extra=about)
        elif str(error) != self._last_problem:
            logger.info("subscription.failed", extra=about)
        self._last_problem = str(error)

    def _failed(self, error: TuplewireError) -> None:
        with self._lock:
            self.failed = error
            # These messages can no longer be acknowledged; the worker delivers them to the task's consumer.
            self._buffer.clear()
            self._moved.notify_all()
        if self._push is not None and not self.over:
            self._push.failed(error)

    def _background_tasks(self, stream: ClientStream) -> Sequence[Coroutine[Any, Any, None]]:
        return (self._write(stream),)

    async def _open(self, stream: ClientStream) -> None:
        with self._lock:
            cursors = self._window.all()
            # The cursors in this request report every acknowledgement, unless some need a later request.
            told = self._known if self._window.has_moved else self._acknowledged
        subscribe = pb.Subscribe(
            protocol_version=PROTOCOL_VERSION,
            topology=self.identity.topology,
            consumer_id=self.identity.sender_id,
            incarnation=self.identity.incarnation,
            tasks=cursors,
            worker_incarnation=self._window.worker_incarnation,
            receiver_id=self.receiver_id,
            subscription=self._number,
            max_response_bytes=ANY_SIZE,
        )
        data = await self._exchange(stream, pb.RecvRequest(subscribe=subscribe))
        subscribed = pb.RecvResponse.FromString(data).subscribed
        with self._lock:
            self._window.opened(
                subscribed.worker_incarnation, [(cursor.task, cursor.received) for cursor in subscribed.tasks]
            )
            self._not_admitted = False
            self._known, self._said_goodbye = told, False
        self._progress.set()
        self.connected = True
        logger.info("subscription.ready", extra={"peer": self.address, "worker": subscribed.worker_id})

    async def _read(self, stream: ClientStream) -> None:
        while (data := await stream.read()) is not None:
            response = decode(pb.RecvResponse, data)
            if not isinstance(response, OpaqueFrame):
                kind = response.WhichOneof("kind")
                if kind == "ended":
                    raise refused(code_name(response.ended.code), response.ended.detail)
                with self._lock:
                    if kind == "probe":
                        self._window.repeat()
                    elif kind == "rejected":
                        self._window.answered(response.rejected.tasks)
                self._progress.set()
                continue
            deliveries = map(
                Delivery, [group.first_sequence for group in response.groups], groups_of(response)
            )
            with self._lock:
                ack_requested, now_ns = response.ack_immediately, time.time_ns()
                arrived = self._window.arrived(deliveries, ack_requested=ack_requested, now_ns=now_ns)
                # The frame may have only duplicates, or messages behind a rejected one.
                if arrived.deliveries and self._push is None:
                    self._buffer.append(arrived)
                    self._moved.notify_all()
            if self._push is not None:
                # Each group has its own acknowledgement: a consumer may stop between two.
                for part in arrived.parts():
                    self._push.receive(part.groups[0], partial(self.acknowledge, part))
        # The worker ends the stream once it has read the goodbye, and so all acknowledgements before it.
        if self._said_goodbye:
            self._known = self._acknowledged

    async def _write(self, stream: ClientStream) -> None:
        while True:
            await self._progress.wait()
            self._progress.clear()
            self._acknowledgements.mark_sent()
            with self._lock:
                self._report_scheduled = False
                closed = self.over  # read before the cursors: earlier acknowledgements are still sent
                cursors = self._window.take_moved()
                more = self._window.has_moved
            if cursors:
                progress = pb.Progress(tasks=cursors)
                await stream.write(pb.RecvRequest(progress=progress).SerializeToString())
            # Rejections beyond the limit of one request follow in the next one.
            if more:
                self._progress.set()
            elif closed:
                self._said_goodbye = True  # before the write: the worker may end the stream during it
                await stream.write(pb.RecvRequest(goodbye=pb.Goodbye()).SerializeToString())
                await stream.done_writing()
                return
