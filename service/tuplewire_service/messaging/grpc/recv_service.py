"""The Recv side of the Messaging service: a consumer's subscription over one stream."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from typing import Any

import grpc

from tuplewire.config import PROTOCOL_VERSION
from tuplewire.errors import (
    DrainingError,
    MalformedError,
    ProtocolVersionError,
    RefusedError,
    TuplewireError,
    WrongTopologyError,
)
from tuplewire.group import TaskGroup, check_task
from tuplewire.session.consume import Cursor
from tuplewire.session.delivery import Delivery
from tuplewire.session.probe import ProbeTimer
from tuplewire.wire import messaging_pb2 as pb
from tuplewire.wire.codec import encode_frame
from tuplewire_service.messaging.grpc.refuse import (
    MAX_DETAIL_LENGTH,
    check_id,
    code_of,
    finish_writing,
    refuse,
)
from tuplewire_service.messaging.grpc.settings import GrpcSettings
from tuplewire_service.messaging.subscription import ISubscription, ISubscriptionSource, SubscribeRequest

logger = logging.getLogger(__name__)

_SUBSCRIBE_SECONDS = 10.0

_BROKEN = (asyncio.CancelledError, grpc.RpcError, asyncio.InvalidStateError)
_Context = grpc.aio.ServicerContext[Any, Any]


class RecvService:
    """Everything behind Messaging.Recv of one bound server. Belongs to the event loop."""

    def __init__(self, topology: str, settings: GrpcSettings, source: ISubscriptionSource) -> None:
        self.topology = topology
        self.settings = settings
        self.source = source
        self.draining = False
        self.refused: Counter[str] = Counter()

    async def serve(self, _: object, context: _Context) -> None:
        """Serve one stream from subscribe to end."""
        subscription: ISubscription | None = None
        try:
            subscribe = await self._subscribe(context)
            if subscribe is None:
                return
            wake = asyncio.Event()
            subscription = self._open(subscribe, wake)
            await context.write(_subscribed(subscription).SerializeToString())
            await self._carry(subscription, wake, context)
        except TuplewireError as error:
            self.refused[code_of(error)] += 1
            logger.warning("stream.refused", extra={"peer": context.peer(), "reason": str(error)})
            await refuse(context, error)
        finally:
            if subscription is not None:
                subscription.close()

    @staticmethod
    async def _subscribe(context: _Context) -> pb.Subscribe | None:
        try:
            async with asyncio.timeout(_SUBSCRIBE_SECONDS):
                data = await context.read()
        except TimeoutError:
            raise MalformedError(f"no subscribe within {_SUBSCRIBE_SECONDS:.0f} s") from None
        if data is grpc.aio.EOF:
            return None
        request = _request(data)
        if not request.HasField("subscribe"):
            raise MalformedError("the first request of a Recv stream must be a subscribe")
        return request.subscribe

    def _open(self, subscribe: pb.Subscribe, wake: asyncio.Event) -> ISubscription:
        if subscribe.protocol_version != PROTOCOL_VERSION:
            raise ProtocolVersionError(
                f"this worker speaks protocol {PROTOCOL_VERSION}, the consumer {subscribe.protocol_version}"
            )
        if subscribe.topology != self.topology:
            raise WrongTopologyError(
                f"this worker serves topology {self.topology!r}, "
                f"the consumer belongs to {subscribe.topology!r}"
            )
        check_id("consumer_id", subscribe.consumer_id)
        cursors = {each.task: _cursor(each) for each in subscribe.tasks}
        if not cursors or len(cursors) < len(subscribe.tasks):
            raise MalformedError("a subscribe names at least one task, and each of them once")
        if self.draining:
            raise DrainingError("the worker is draining; connect again later, or to another one")
        request = SubscribeRequest(
            subscribe.topology,
            subscribe.consumer_id,
            subscribe.incarnation,
            subscribe.worker_incarnation,
            list(cursors.values()),
        )
        return self.source.subscribe(request, wake.set)

    async def _carry(self, subscription: ISubscription, wake: asyncio.Event, context: _Context) -> None:
        probe = _Probe(wake)
        closing = asyncio.Event()
        writer = asyncio.create_task(self._write(subscription, probe, closing, context), name="deliver")
        others = [
            asyncio.create_task(self._read(subscription, probe, context), name="progress"),
            asyncio.create_task(probe.run(subscription), name="probe"),
        ]
        try:
            await asyncio.wait([writer, *others], return_when=asyncio.FIRST_COMPLETED)
        finally:
            closing.set()
            wake.set()
            for task in others:
                task.cancel()
            try:
                await finish_writing(writer)
            finally:
                for task in others:
                    with contextlib.suppress(*_BROKEN):
                        await task

    @staticmethod
    async def _read(subscription: ISubscription, probe: _Probe, context: _Context) -> None:
        while (data := await context.read()) is not grpc.aio.EOF:
            request = _request(data)
            kind = request.WhichOneof("kind")
            if kind == "progress":
                probe.heard()
                subscription.progress([_cursor(each) for each in request.progress.tasks])
            elif kind == "goodbye":
                return
            elif kind not in {"load", "backpressure"}:  # for display, and nobody here looks
                raise MalformedError(f"a request of kind {kind} within a stream")

    async def _write(
        self, subscription: ISubscription, probe: _Probe, closing: asyncio.Event, context: _Context
    ) -> None:
        sequence = 0
        max_bytes = self.settings.session.max_frame_bytes
        wake = probe.wake
        while not closing.is_set():
            wake.clear()
            if probe.due:
                probe.due = False
                await context.write(pb.RecvResponse(probe=pb.Probe()).SerializeToString())
            deliveries = subscription.take(max_bytes)
            if deliveries:
                sequence += 1
                await context.write(_frame(sequence, deliveries))
                continue
            if (error := subscription.ended) is not None:
                await context.write(_ended(error).SerializeToString())
                raise error
            await wake.wait()


class _Probe:
    """Asks a consumer to say everything again when there is no news of what we wait for: it may be lost."""

    def __init__(self, wake: asyncio.Event) -> None:
        self.wake = wake
        self.due = False
        self._clock = asyncio.get_running_loop().time
        self._timer = ProbeTimer(self._clock())

    def heard(self) -> None:
        self._timer.heard(self._clock())

    async def run(self, subscription: ISubscription) -> None:
        while True:
            await asyncio.sleep(self._timer.wait(self._clock()))
            if not self._timer.wait(self._clock()):
                self.heard()
                self.due = subscription.waiting
                if self.due:
                    self.wake.set()


def _request(data: bytes) -> pb.RecvRequest:
    try:
        return pb.RecvRequest.FromString(data)
    except Exception as error:
        raise MalformedError(f"{len(data)} bytes are not a RecvRequest: {error}") from error


def _cursor(cursor: pb.TaskCursor) -> Cursor:
    return Cursor(
        check_task(cursor.task), cursor.acknowledged, cursor.received, cursor.credit, cursor.credit_bytes
    )


def _subscribed(subscription: ISubscription) -> pb.RecvResponse:
    return pb.RecvResponse(
        subscribed=pb.Subscribed(
            protocol_version=PROTOCOL_VERSION,
            worker_id=subscription.worker_id,
            worker_incarnation=subscription.worker_incarnation,
            tasks=[pb.TaskCursor(task=task, received=received) for task, received in subscription.starts],
        )
    )


def _ended(error: RefusedError) -> pb.RecvResponse:
    detail = str(error)[:MAX_DETAIL_LENGTH]
    return pb.RecvResponse(ended=pb.Ended(code=f"ERROR_CODE_{error.code}", detail=detail))


def _frame(sequence: int, deliveries: list[Delivery]) -> bytes:
    """Encode deliveries, those that follow each other within one (task, source) as one group."""
    runs: list[list[TaskGroup]] = []
    firsts: list[int] = []
    last: TaskGroup | None = None
    for delivery in deliveries:
        group = delivery.group
        if last is not None and group.joins(last):
            runs[-1].append(group)
        else:
            runs.append([group])
            firsts.append(delivery.first_sequence)
        last = group
    return encode_frame(sequence, runs, firsts)
