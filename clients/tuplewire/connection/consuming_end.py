"""A consuming session with one worker: it reads messages, reports acknowledgements, and reconnects.

Used by receiver.py, which has one for each worker that owns some of its tasks. Owns the consume session and
the stream. Call only from the event loop, except acknowledge().
Design: docs/design/moves.md ("Subscriptions follow tasks"); docs/design/sessions.md.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

from tuplewire.connection.grpc_channel import UNLIMITED_BYTES
from tuplewire.connection.reconnecting_session import Identity, ReconnectingSession
from tuplewire.connection.stream import BatchedEvent, ClientStream, StreamOpener
from tuplewire.connection.submission_queue import InterruptSafeCondition
from tuplewire.errors import TaskNotLocalError, TuplewireError, UnknownTaskError, refusal_error
from tuplewire.session.consume import ArrivedBatch, ConsumeSession, Delivery, RejectedMessage
from tuplewire.settings.config import PROTOCOL_VERSION, SessionSettings
from tuplewire.text.events import event_logger
from tuplewire.values.group import TaskGroup
from tuplewire.wire import messaging_pb2 as pb
from tuplewire.wire.codec import decode, groups_of
from tuplewire.wire.opaque_pb2 import OpaqueFrame
from tuplewire.wire.translate import code_name

logger = event_logger(__name__)

_FIRST_SEQUENCE = attrgetter("entry_sequence")
"""Returns the sequence of a delivered group's first message: both are one field on the wire."""
_CLOSE_SECONDS = 3.0
"""The time in which a closed subscription tries to report its last acknowledgements."""
_ANSWER_SECONDS = 1.0

OnGroup = Callable[[TaskGroup, Callable[[], None]], None]
OnFailure = Callable[[TuplewireError], None]


@dataclass(frozen=True, slots=True)
class Callbacks:
    """Functions that get messages instead of the buffer. Called on the event loop, so they must not block."""

    on_group: OnGroup
    """Called with each group, in order, and a function that acknowledges it, from any thread."""
    on_failure: OnFailure
    """Called with the final error; also if workers do not accept in time: messages may follow."""


@dataclass(eq=False, repr=False)
class Inbox(ABC):
    """The messages that have arrived at a subscription, from all its streams, and that were not taken yet.

    The streams call its methods on the event loop; put() and discard() with the lock.
    """

    identity: Identity
    settings: SessionSettings
    loop: asyncio.AbstractEventLoop
    callbacks: Callbacks | None
    follows: bool
    """True if the subscription finds other workers for tasks."""

    def __post_init__(self) -> None:
        self.subscription_id = secrets.randbits(63)
        """The number of the subscription, the same at all workers."""
        self.admitted = False
        """True if the workers have accepted the whole subscription before."""
        self.lock = threading.Lock()
        """Protects the consume sessions and the buffer."""
        self.buffer_changed = InterruptSafeCondition(self.lock)
        self.buffer: deque[ArrivedBatch] = deque()

    def put(self, arrived: ArrivedBatch) -> None:
        """Add new messages."""
        self.buffer.append(arrived)
        self.buffer_changed.notify_all()

    def discard(self, session: ConsumeSession) -> None:
        """Remove the messages of a session behind a rejected one, because they are delivered again."""
        awaiting_tasks = session.tasks_awaiting_answer()
        kept = (each.without(awaiting_tasks) if each.session is session else each for each in self.buffer)
        self.buffer = deque(each for each in kept if each.deliveries)

    @abstractmethod
    def on_connected(self, stream: ConsumingEnd) -> None:
        """Record that a worker has accepted a stream's tasks."""

    @abstractmethod
    def on_lost(self, stream: ConsumingEnd, error: TuplewireError) -> None:
        """Handle a stream that ended or could not be opened; it is opened again."""

    @abstractmethod
    def on_moved(self, stream: ConsumingEnd, tasks: Iterable[int]) -> None:
        """Handle tasks that have moved from a stream's worker to another one."""

    @abstractmethod
    def on_failed(self, error: TuplewireError) -> None:
        """End the subscription with an error."""


class ConsumingEnd(ReconnectingSession):
    """The session of a subscription with one worker."""

    method = "Recv"

    def __init__(
        self, inbox: Inbox, address: str, open_stream: StreamOpener, expected_id: str, tasks: Iterable[int]
    ) -> None:
        """Create the session for some tasks of a subscription. It does not connect yet."""
        settings = inbox.settings
        super().__init__(address, inbox.identity, settings, inbox.loop, open_stream, expected_id)
        self.tasks = tuple(tasks)
        self.worker_id = expected_id
        """The id of the worker; empty if it is not known yet."""
        self.session = ConsumeSession(self.tasks, settings.prefetch_messages, settings.prefetch_bytes)
        self._inbox = inbox
        self._lock = inbox.lock
        self._write_event = asyncio.Event()
        self._ack_event = BatchedEvent(self._write_event, inbox.loop)
        self._report_scheduled = False
        """True if the loop is about to report acknowledgements: it does not need another wake-up."""
        self._ack_count = self._confirmed_acks = 0
        """The number of acknowledgements, and the number that the worker has certainly received."""
        self._goodbye_sent = False
        self._was_admitted = inbox.admitted
        self._requested_at = -math.inf
        """The time of the subscribe request without an answer, if there is one."""

    @property
    def opening(self) -> bool:
        """True for at most a second after a subscribe request without answer: messages may be in flight."""
        return time.monotonic() - self._requested_at < _ANSWER_SECONDS

    def acknowledge(self, arrived: ArrivedBatch, rejected: Sequence[RejectedMessage] = ()) -> None:
        """Acknowledge messages from this worker, except outdated ones; see ConsumeSession. Thread-safe."""
        with self._lock:
            is_current = self.session.acknowledge(arrived, rejected)
            if is_current and rejected:
                self._inbox.discard(self.session)
            if not is_current or self.is_closed:
                return
            self._ack_count += 1
            if self._report_scheduled and not arrived.ack_requested:  # the report in progress includes it
                return
            self._report_scheduled = True
        self._loop.call_soon_threadsafe(partial(self._ack_event.add, immediately=arrived.ack_requested))

    def set_tasks(self, tasks: Iterable[int]) -> None:
        """Consume exactly these tasks, from the next time that the stream is opened."""
        self.tasks = tuple(tasks)
        with self._lock:
            self.session.set_tasks(self.tasks)

    async def close(self) -> None:
        """Close the session after reporting all acknowledgements, in at most three seconds.

        If the stream breaks in that time, another one is opened. After a cancelled call, the session is
        closed and its stream ends automatically. A second call at the same time waits in the same way.
        """
        with self._lock:
            self.is_closed = True
        self._write_event.set()
        if self._run_task is not None and (self.connected or self._needs_stream):
            await asyncio.wait([self._run_task], timeout=_CLOSE_SECONDS)
        await self.suspend()

    @property
    def _needs_stream(self) -> bool:
        # A closed session still needs a stream while acknowledgements are not reported.
        return not self.is_closed or self._confirmed_acks < self._ack_count

    def _is_retryable(self, error: TuplewireError) -> bool:
        # The receiver finds the owner, and moves the tasks to the stream of that worker.
        is_wrong_worker = isinstance(error, TaskNotLocalError | UnknownTaskError)
        return (is_wrong_worker and self._inbox.follows) or super()._is_retryable(error)

    def _on_lost(self, error: TuplewireError) -> None:
        if self.is_closed:
            return
        fields = {"address": self.address, "reason": str(error)}
        if self.connected:
            logger.info("subscription.disconnected", extra=fields)
        elif str(error) != self._last_problem:
            logger.info("subscription.attempt_failed", extra=fields)
        self._last_problem = str(error)
        self._inbox.on_lost(self, error)

    def _on_failed(self, error: TuplewireError) -> None:
        if not self.is_closed:
            self._inbox.on_failed(error)

    def _background_tasks(self, stream: ClientStream) -> Sequence[Coroutine[Any, Any, None]]:
        return (self._write(stream),)

    async def _open(self, stream: ClientStream) -> None:
        with self._lock:
            cursors = self.session.take_all_cursors()
            # The cursors in this request report every acknowledgement, unless some need a later request.
            reported_acks = self._confirmed_acks if self.session.changed_tasks else self._ack_count
        subscribe = pb.Subscribe(
            protocol_version=PROTOCOL_VERSION,
            topology=self.identity.topology,
            consumer_id=self.identity.client_id,
            incarnation=self.identity.incarnation,
            tasks=cursors,
            worker_incarnation=self.session.worker_incarnation,
            expected_worker_id=self.expected_worker_id,
            subscription_id=self._inbox.subscription_id,
            max_response_bytes=UNLIMITED_BYTES,
            follows_tasks=self._inbox.follows and self._inbox.admitted,
        )
        self._requested_at = time.monotonic()
        try:
            data = await self._exchange(stream, pb.RecvRequest(subscribe=subscribe))
        finally:
            self._requested_at = -math.inf
        subscribed = pb.RecvResponse.FromString(data).subscribed
        with self._lock:
            starts = [(cursor.task, cursor.received_sequence) for cursor in subscribed.tasks]
            self.session.on_connected(subscribed.worker_incarnation, starts)
            self._confirmed_acks, self._goodbye_sent = reported_acks, False
        self._write_event.set()
        self.connected, self.worker_id = True, subscribed.worker_id
        self._inbox.on_connected(self)
        logger.info("subscription.ready", extra={"address": self.address, "worker": subscribed.worker_id})

    async def _read(self, stream: ClientStream) -> None:
        callbacks = self._inbox.callbacks
        while (data := await stream.read()) is not None:
            response = decode(pb.RecvResponse, data)
            if not isinstance(response, OpaqueFrame):
                kind = response.WhichOneof("kind")
                if kind == "ended":
                    end = response.ended
                    raise refusal_error(code_name(end.code), end.detail, end.owner_address, end.owner_id)
                if kind == "moved":
                    self._inbox.on_moved(self, response.moved.tasks)
                    continue
                with self._lock:
                    if kind == "probe":
                        self.session.mark_all_changed()
                    elif kind == "rejected":
                        self.session.apply_answers(response.rejected.tasks)
                self._write_event.set()
                continue
            groups = groups_of(response)
            deliveries = map(Delivery, map(_FIRST_SEQUENCE, groups), groups)
            with self._lock:
                ack_requested, now_ns = response.ack_immediately, time.time_ns()
                arrived = self.session.receive(deliveries, ack_requested=ack_requested, now_ns=now_ns)
                # The frame may have only duplicates, or messages behind a rejected one.
                if arrived.deliveries and callbacks is None:
                    self._inbox.put(arrived)
            if callbacks is not None:
                # Each group has its own acknowledgement: a consumer may stop between two.
                for part in arrived.each_delivery():
                    callbacks.on_group(part.groups[0], partial(self.acknowledge, part))
        # The worker ends the stream once it has read the goodbye, and so all acknowledgements before it.
        if self._goodbye_sent:
            self._confirmed_acks = self._ack_count

    async def _write(self, stream: ClientStream) -> None:
        while True:
            await self._write_event.wait()
            self._write_event.clear()
            self._ack_event.mark_sent()
            with self._lock:
                self._report_scheduled = False
                closed = self.is_closed  # read before the cursors: earlier acknowledgements are still sent
                cursors = self.session.take_changed_cursors()
                more = bool(self.session.changed_tasks)
            if cursors:
                await stream.write(pb.RecvRequest(progress=pb.Progress(tasks=cursors)).SerializeToString())
            # Rejections beyond the limit of one request follow in the next one.
            if more:
                self._write_event.set()
            elif closed:
                self._goodbye_sent = True  # before the write: the worker may end the stream during it
                await stream.write(pb.RecvRequest(goodbye=pb.Goodbye()).SerializeToString())
                await stream.done_writing()
                return
