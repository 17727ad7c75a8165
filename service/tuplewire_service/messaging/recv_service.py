"""The Recv RPC: one stream per consumer. Subscribe and progress in; frames, answers and probes out.

If the callback of `bind` is also an ISubscriptionSource, it receives the subscriptions; otherwise Recv is
refused. Used by streamed_transport.py, worker/ and control/spark_servicers.py. Owns no messages: the
subscription does. Call only from the event loop; methods must not block. Design: docs/design/sessions.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from tuplewire.connection.pacer import Pacer
from tuplewire.connection.stream import ProbeTimer, StreamBroken
from tuplewire.errors import DrainingError, MalformedError, PayloadTooLargeError, RefusedError, TuplewireError
from tuplewire.session.ack_requests import AckRequestPolicy
from tuplewire.session.consume import MAX_REASON_CHARS, Delivery
from tuplewire.session.pieces import wire_bytes
from tuplewire.settings.config import PROTOCOL_VERSION, SessionSettings
from tuplewire.values.group import TaskGroup, check_task, same_millisecond
from tuplewire.wire import messaging_pb2 as pb
from tuplewire.wire.codec import encode_frame
from tuplewire_service.messaging.server_stream import (
    AccessRights,
    ServerStream,
    StreamService,
    check_id,
    ended_to_wire,
    finish_writing,
    parse,
)

_DEFAULT_RESPONSE_BYTES = 4 << 20
"""The response limit of a consumer that reports none."""
_CURSORS_PER_TURN = 100
"""Maximum number of cursors and rejections for one turn of the loop: other sessions are not delayed."""
_is_retained_upstream = attrgetter("group.retained_upstream")
_RESPONSE_OVERHEAD_BYTES = 64
"""The maximum overhead of a response in addition to its groups."""


class ISubscription(ABC):
    """The subscription of one consumer to some tasks."""

    end_error: RefusedError | None = None
    """The reason for the end (superseded, the task moved, a drain); None while it is active."""
    acks_urgent: bool = False
    """True if the last take() took messages of a queue that is at least a quarter full."""
    ready_tasks: dict[int, None]
    """The tasks for which take() may return messages."""
    rejection_answers: dict[int, pb.RejectedTask]
    """New answers to rejections by task; send them before the result of the next take()."""
    moved_tasks: list[int]
    """Tasks that have moved to another worker, unless all have moved."""

    @property
    @abstractmethod
    def positions(self) -> Sequence[tuple[int, int]]:
        """For each task, the sequence before the first message to be delivered."""

    @property
    @abstractmethod
    def has_unacknowledged(self) -> bool:
        """True if there are unacknowledged messages, delivered or not."""

    @abstractmethod
    def take(self, max_bytes: int) -> list[Delivery]:
        """Return messages for which the consumer has credit, up to about `max_bytes` payload bytes."""

    @abstractmethod
    def apply_progress(self, cursors: Sequence[pb.TaskCursor]) -> bool:
        """Apply reported progress. Return True if it exceeds one turn of the loop: call again to continue."""

    @abstractmethod
    def close(self) -> None:
        """End the subscription: unacknowledged messages wait, in order, for this or the next consumer."""


class ISubscriptionSource(ABC):
    """Queues messages for consumers."""

    @abstractmethod
    def subscribe(
        self, request: pb.Subscribe, access: AccessRights, address: str, wake: Callable[[], None]
    ) -> ISubscription:
        """Assign the tasks to a consumer, and end the subscriptions that hold them. Raises RefusedError.

        The same consumer id of another owner, see `access`, is another consumer. `address` is the consumer's,
        as the transport reports it, perhaps memory:PORT. `wake` is called when messages may be available,
        or when the subscription ends.
        """


@dataclass(eq=False)
class RecvService(StreamService):
    """All Recv streams of one bound server. Call only from the event loop."""

    subscription_source: ISubscriptionSource
    draining: bool = False

    async def serve(self, stream: ServerStream) -> None:
        """Serve one stream from subscribe to end."""
        subscription: ISubscription | None = None
        try:
            # For the ends without a subscription, see StreamService; for the others, see RecvStream.run().
            access = stream.admit()
            denial: asyncio.Future[RefusedError] = asyncio.get_running_loop().create_future()
            with access.track_stream(denial.set_result):
                data = await self.pending_handshakes.read_first(stream.read, "subscribe")
                if data is None:
                    return
                request = parse(pb.RecvRequest.FromString, data, "RecvRequest")
                if not request.HasField("subscribe"):
                    raise MalformedError("the first request of a Recv stream must be a subscribe")
                wake = asyncio.Event()
                subscription = await self._open(request.subscribe, access, wake, stream.peer)
                # The answer promises that all rejections of the subscribe are applied.
                await _apply_cursors(subscription, ())
                subscribed = pb.Subscribed(
                    protocol_version=PROTOCOL_VERSION,
                    worker_id=self.settings.worker_id,
                    worker_incarnation=self.settings.incarnation,
                    tasks=[pb.TaskCursor(task=t, received_sequence=s) for t, s in subscription.positions],
                )
                await stream.write(pb.RecvResponse(subscribed=subscribed).SerializeToString())
                limit = request.subscribe.max_response_bytes or _DEFAULT_RESPONSE_BYTES
                await RecvStream(self.settings.session, stream, subscription, wake, denial, limit).run()
        except TuplewireError as error:
            await self._refuse(stream, error)
        finally:
            if subscription is not None:
                subscription.close()

    async def _open(
        self, subscribe: pb.Subscribe, access: AccessRights, wake: asyncio.Event, peer: str
    ) -> ISubscription:
        self._check_peer("consumer", subscribe)
        check_id("consumer_id", subscribe.consumer_id)
        cursors = await _cursors_of(subscribe)
        if not cursors or len(cursors) < len(subscribe.tasks):
            raise MalformedError("a subscribe names at least one task, and each of them once")
        access.check_receive(subscribe.topology, cursors)
        if self.draining:
            raise DrainingError("the worker is draining; connect again later, or to another one")
        return self.subscription_source.subscribe(subscribe, access, peer, wake.set)


@dataclass(eq=False)
class RecvStream:
    """The stream of one subscription. `denial` is done once the consumer's admission is withdrawn."""

    settings: SessionSettings
    stream: ServerStream
    subscription: ISubscription
    wake: asyncio.Event
    denial: asyncio.Future[RefusedError]
    max_response_bytes: int

    def __post_init__(self) -> None:
        self._pacer = Pacer(self.settings.linger_seconds)
        self._closing = False
        self._clock = asyncio.get_running_loop().time
        self._probe_timer = ProbeTimer(asyncio.get_running_loop())
        self._probe_due = False

    async def run(self) -> None:
        """Read, write and probe until one side ends the stream. Raises the error for its end."""
        # The ways in which a stream ends:
        # 1. The consumer says goodbye, or closes its side: _read() returns.
        # 2. A request violates the protocol: _read() raises MalformedError.
        # 3. The subscription ends: _write() sends the reason, and raises it.
        # 4. A message exceeds the consumer's limit: _write() raises PayloadTooLargeError.
        # 5. The admission is withdrawn: `denial` has the error, and the writer sends it as the last response.
        # 6. The connection breaks: _read() ends, or raises StreamBroken. gRPC also cancels this task.
        # 7. The server stops: the transport cancels this task.
        writer = asyncio.create_task(self._write(), name="deliver")
        helper_tasks = [
            asyncio.create_task(self._read(), name="progress"),
            asyncio.create_task(self._probe_timer.run(self._probe), name="probe"),
        ]
        try:
            ending_futures: list[asyncio.Future[Any]] = [writer, self.denial, *helper_tasks]
            await asyncio.wait(ending_futures, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._closing = True
            self.wake.set()
            for task in helper_tasks:
                task.cancel()
            try:
                # A cancelled write would leave the peer without a status; see finish_writing().
                await finish_writing(writer)
            finally:
                for task in helper_tasks:
                    with contextlib.suppress(asyncio.CancelledError, StreamBroken):
                        await task
        if self.denial.done():
            raise self.denial.result()

    async def _read(self) -> None:
        while (data := await self.stream.read()) is not None:
            request = parse(pb.RecvRequest.FromString, data, "RecvRequest")
            kind = request.WhichOneof("kind")
            if kind == "progress":
                self._probe_timer.reset()
                await _apply_progress(self.subscription, request.progress)
                # Progress ends the pause between small frames, so that a reply is not delayed.
                if self._pacer.lingering:
                    self._pacer.release_next()
            elif kind == "goodbye":
                return
            else:
                raise MalformedError(f"unexpected request of kind {kind} after the subscribe")

    async def _write(self) -> None:
        frame_sequence, ack_requests = 0, AckRequestPolicy()
        stream, subscription, wake = self.stream, self.subscription, self.wake
        while not self._closing:
            wake.clear()
            if self._probe_due:
                self._probe_due = False
                await stream.write(pb.RecvResponse(probe=pb.Probe()).SerializeToString())
            while subscription.rejection_answers:  # before the messages after them
                rejected = pb.Rejected(tasks=subscription.rejection_answers.values())
                subscription.rejection_answers.clear()
                await stream.write(pb.RecvResponse(rejected=rejected).SerializeToString())
            if subscription.moved_tasks:
                moved = pb.Moved(tasks=subscription.moved_tasks)
                subscription.moved_tasks.clear()
                await stream.write(pb.RecvResponse(moved=moved).SerializeToString())
            if deliveries := subscription.take(self.settings.max_frame_bytes):
                # Senders that retain messages until they are processed wait for the acknowledgement.
                urgent = subscription.acks_urgent or any(map(_is_retained_upstream, deliveries))
                ack_requested = ack_requests.ack_wanted(self._clock(), urgent=urgent)
                unlimited = self.max_response_bytes >> 31  # no message of protobuf is larger
                parts = (deliveries,) if unlimited else _split_to_fit(deliveries, self.max_response_bytes)
                for part in parts:
                    frame_sequence += 1
                    data = encode_deliveries(frame_sequence, part, ack_requested=ack_requested)
                    await stream.write(data)
                # Messages that arrive during the pause share a frame; see docs/design/credit.md (pacing).
                if wait := self._pacer.record_write(time.monotonic(), len(data)):
                    await self._pacer.linger(wait)
                elif not subscription.ready_tasks:  # wait without another pass
                    await wake.wait()
                continue
            # Only after the last delivery, so that the consumer gets everything that was taken.
            if (error := subscription.end_error) is not None:
                await stream.write(pb.RecvResponse(ended=ended_to_wire(error)).SerializeToString())
                raise error
            await wake.wait()
        if self.denial.done():
            await stream.write(pb.RecvResponse(ended=ended_to_wire(self.denial.result())).SerializeToString())

    def _probe(self) -> None:
        """Request the consumer's state again if expected progress is overdue: it may have been lost."""
        self._probe_due = self.subscription.has_unacknowledged
        if self._probe_due:
            self.wake.set()


async def _cursors_of(subscribe: pb.Subscribe) -> dict[int, pb.TaskCursor]:
    """Return a consumer's cursors by task, after a check of each."""
    async for _ in _cursor_batches(subscribe.tasks):
        pass
    return {each.task: each for each in subscribe.tasks}


async def _apply_progress(subscription: ISubscription, progress: pb.Progress) -> None:
    async for cursors in _cursor_batches(progress.tasks):
        await _apply_cursors(subscription, cursors)


async def _cursor_batches(cursors: Iterable[pb.TaskCursor]) -> AsyncIterator[list[pb.TaskCursor]]:
    """Check a consumer's cursors, and yield them in batches for one turn of the loop: others run in between.

    Shortens long reasons. Raises InvalidTaskError for an invalid task id, MalformedError if the numbers of
    rejections do not increase.
    """
    batch: list[pb.TaskCursor] = []
    batch_size = 0
    for cursor in cursors:
        task, last_number = check_task(cursor.task), 0
        for count, each in enumerate(cursor.rejections, 1):
            if each.number <= last_number:
                raise MalformedError(f"task {task}: rejection {each.number} is not above {last_number}")
            last_number = each.number
            each.reason = each.reason[:MAX_REASON_CHARS]
            if count % _CURSORS_PER_TURN == 0:
                await asyncio.sleep(0)
        # A cursor with many rejections is a batch of its own, which the subscription applies in parts.
        if batch and batch_size + len(cursor.rejections) >= _CURSORS_PER_TURN:
            yield batch
            await asyncio.sleep(0)
            batch, batch_size = [], 0
        batch.append(cursor)
        batch_size += 1 + len(cursor.rejections)
    yield batch


async def _apply_cursors(subscription: ISubscription, cursors: Sequence[pb.TaskCursor]) -> None:
    while subscription.apply_progress(cursors):
        cursors = ()
        await asyncio.sleep(0)


def _split_to_fit(deliveries: list[Delivery], limit: int) -> Iterator[list[Delivery]]:
    """Split deliveries so that each part fits into a response of `limit` bytes."""
    # Only responses above the consumer's limit are cut, so halves are good enough.
    if sum(wire_bytes(each.group) for each in deliveries) + _RESPONSE_OVERHEAD_BYTES <= limit:
        yield deliveries
        return
    group, first = deliveries[0].group, deliveries[0].first_sequence
    if len(deliveries) > 1:
        half = len(deliveries) // 2
        parts = [deliveries[:half], deliveries[half:]]
    elif group.count > 1:
        half = group.count // 2
        later = Delivery(first + half, group.slice(half, group.count))
        parts = [[Delivery(first, group.slice(0, half))], [later]]
    else:
        raise PayloadTooLargeError(
            f"a message of {group.size_bytes} bytes waits in task {group.task}, and the consumer accepts "
            f"responses of up to {limit} bytes: raise max_response_bytes and gRPC's limit at the consumer"
        )
    for part in parts:
        yield from _split_to_fit(part, limit)


def encode_deliveries(sequence: int, deliveries: list[Delivery], *, ack_requested: bool) -> bytes:
    """Encode deliveries; adjacent ones with the same (task, source) and time become one group."""
    runs: list[list[TaskGroup]] = []
    firsts: list[int] = []
    run_micros: list[int] = []
    last: TaskGroup | None = None
    for delivery in deliveries:
        group, micros = delivery.group, delivery.group.accepted_micros
        if last is not None and group.can_follow(last) and same_millisecond(micros, run_micros[-1]):
            runs[-1].append(group)
        else:
            runs.append([group])
            firsts.append(delivery.first_sequence)
            run_micros.append(micros)
        last = group
    return encode_frame(sequence, runs, firsts, accepted_micros=run_micros, ack_immediately=ack_requested)
