"""The Send side of the Messaging service: sessions in, batches to the callback, acknowledgements back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import grpc

from tuplewire.config import PROTOCOL_VERSION, AckMode
from tuplewire.errors import (
    DrainingError,
    MalformedError,
    PayloadRefusedError,
    ProtocolVersionError,
    RefusedError,
    ResourceLimitError,
    SequenceGapError,
    StaleIncarnationError,
    TuplewireError,
    WrongTopologyError,
)
from tuplewire.group import TaskGroup, lane_of
from tuplewire.session.credit import CreditBook, Grant, Window
from tuplewire.session.receive import ReceiveSession
from tuplewire.wire import messaging_pb2 as pb
from tuplewire.wire.codec import decode_send_request, groups_of
from tuplewire.wire.opaque_pb2 import OpaqueFrame
from tuplewire.wire.translate import grant_to_wire, update_to_wire
from tuplewire_service.messaging.base import (
    IConnectionCallback,
    ReceiveCount,
    ReceivedBatch,
    by_via,
    via_of,
)
from tuplewire_service.messaging.grpc.refuse import check_id, code_of, finish_writing, refuse
from tuplewire_service.messaging.grpc.settings import GrpcSettings

logger = logging.getLogger(__name__)

CLIENT_SOURCE = "client"
OTHER_SOURCE = "other"
MAX_SOURCES = 1000
_HELLO_SECONDS = 10.0
_FAREWELL_SECONDS = 1.0
"""A sender that hears of a drain ends its stream; one that does not in this time is cut off."""

_Context = grpc.aio.ServicerContext[Any, Any]


class _Origin:
    """Where a session's batches come from; those that came by another worker have an origin of their own."""

    def __init__(self, session: _Session, came_by: int) -> None:
        self.source = session.source
        self.via = session.via
        # A worker passes on to us what we pass on again only while a task moves, which it waits for.
        self.eager = session.worker or session.ack_mode is AckMode.PROCESSED
        self._session = session
        self._came_by = came_by

    def release(self, task: int, messages: int, size_bytes: int) -> None:
        """See Origin.release; from any thread."""
        self._session.release(lane_of(task, self._came_by), messages, size_bytes)


class _Session:
    """A sender's session and the stream that carries it now."""

    def __init__(self, service: SendService, hello: pb.Hello, epoch: int) -> None:
        self.epoch = epoch
        """Tells this session's memory from any other of the same sender, here or elsewhere."""
        # A worker's id, then the number of the connection among its own.
        worker_id = hello.sender_id.rpartition("/")[0] or hello.sender_id
        self.worker = hello.kind == pb.PEER_KIND_WORKER
        self.source = worker_id if self.worker else CLIENT_SOURCE
        self.ack_mode = AckMode.PROCESSED if hello.ack_mode == pb.ACK_MODE_PROCESSED else AckMode.QUEUED
        self.via = via_of(worker_id, hello.incarnation) if self.worker else 0
        self.origin = _Origin(self, 0)
        self._origins = {0: self.origin}
        self.state = ReceiveSession(
            hello.sender_id,
            hello.incarnation,
            CreditBook(
                service.window,
                max_message_bytes=service.settings.session.max_message_bytes,
                eager=self.ack_mode is AckMode.PROCESSED,
            ),
        )
        self.stream: _Stream | None = None
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def origin_of(self, via: int) -> _Origin:
        """Return the origin of what came by a worker; 0: of what came straight."""
        origin = self._origins.get(via)
        if origin is None:
            origin = self._origins[via] = _Origin(self, via)
        return origin

    def release(self, lane: int, messages: int, size_bytes: int) -> None:
        """Take account of messages that are done with; from any thread."""
        if threading.get_ident() != self._thread:
            self._loop.call_soon_threadsafe(self.release, lane, messages, size_bytes)
        elif self.state.credit.released(lane, messages, size_bytes) and self.stream is not None:
            self.stream.wake.set()


class _Stream:
    """One gRPC stream of a session."""

    def __init__(self, context: _Context) -> None:
        self.context = context
        self.wake = asyncio.Event()
        self.notices: dict[str, pb.SendResponse] = {}
        """What to write besides acknowledgements, the latest of each kind: a peer may never read."""
        self.task = asyncio.current_task()
        self.waiting: asyncio.Task[Any] | None = None
        """The task while it may be interrupted: a write must not be, see finish_writing."""
        self.ending: TuplewireError | None = None
        self.worker = False
        self.last = False
        """Whether what comes is the last of a worker that is about to go."""
        self.finished = asyncio.Event()
        """Set once nothing more is read."""

    def is_refused(self, *, workers: bool) -> bool:
        """Whether a drain ends this stream: a program's, or any worker's that is not about to go itself."""
        return not self.worker or (workers and not self.last)

    def notify(self, notice: pb.SendResponse) -> None:
        kind = notice.WhichOneof("kind") or ""
        if kind == "backpressure" and kind in self.notices:
            _merge(self.notices[kind].backpressure, notice.backpressure)
        else:
            self.notices[kind] = notice
        self.wake.set()

    def end(self, error: TuplewireError) -> None:
        """Make the stream end with an error, after a last acknowledgement; only the first error counts."""
        if self.ending is None:
            self.ending = error
            if self.waiting is not None:
                self.waiting.cancel()


def _merge(status: pb.BackpressureStatus, later: pb.BackpressureStatus) -> None:
    """Add a later status to one that was not sent yet."""
    congested = set(status.congested).difference(later.relieved).union(later.congested)
    relieved = set(status.relieved).union(later.relieved).difference(later.congested)
    status.congested[:] = sorted(congested)
    status.relieved[:] = sorted(relieved)


class SendService:
    """Everything behind Messaging.Send of one bound server. Belongs to the event loop."""

    def __init__(self, topology: str, settings: GrpcSettings, callback: IConnectionCallback) -> None:
        self.topology = topology
        self.settings = settings
        self.callback = callback
        self.draining = False
        self._refuses_workers = False
        self._ending = False
        self.refused: Counter[str] = Counter()
        self._sessions: dict[str, _Session] = {}
        self._epoch = 0
        self._streams: set[_Stream] = set()
        self._received: dict[str, list[int]] = {}
        self._loads: pb.LoadReport = pb.LoadReport()
        self._window = settings.window(1)

    def window(self) -> Window:
        """Return the share of one session in a task's queue, as of now."""
        return self._window

    @property
    def sessions(self) -> int:
        """How many sessions are remembered."""
        return len(self._sessions)

    def received(self) -> list[ReceiveCount]:
        """Return what has arrived, by source."""
        return [ReceiveCount(source, *counts) for source, counts in self._received.items()]

    def send_load(self, loads: Mapping[int, float]) -> None:
        """Tell every sender, now and when it connects."""
        self._loads = pb.LoadReport(tasks=[pb.TaskLoad(task=t, load=load) for t, load in loads.items()])
        notice = pb.SendResponse(load=self._loads)
        for stream in self._streams:
            stream.notify(notice)

    def send_backpressure(self, worker_id: str, congested: Sequence[int], relieved: Sequence[int]) -> None:
        """Tell every sender."""
        status = pb.BackpressureStatus(worker_id=worker_id, congested=congested, relieved=relieved)
        for stream in self._streams:
            stream.notify(pb.SendResponse(backpressure=status))

    async def drain(self, *, workers: bool = True) -> None:
        """Take nothing new from programs, or from workers either, and acknowledge what was taken.

        The senders end the streams themselves: they stop writing, and read until the last acknowledgement. A
        stream that this side breaks off may lose that one, and its sender would send again what has arrived.
        Where the sender waits until its messages are processed, that goes on until end().
        """
        self.draining = True
        self._refuses_workers = workers
        streams = [stream for stream in self._streams if stream.is_refused(workers=workers)]
        for stream in streams:
            stream.notify(pb.SendResponse(drain=pb.Drain()))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FAREWELL_SECONDS):
                for stream in streams:
                    await stream.finished.wait()
        for stream in streams:
            if not stream.finished.is_set():
                stream.end(DrainingError("the worker is draining; connect again later, or to another one"))

    async def end(self) -> None:
        """End every stream, after what there is to say, at the end of a drain."""
        self._ending = True
        for stream in self._streams:
            stream.wake.set()
        tasks = [stream.task for stream in self._streams if stream.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=_FAREWELL_SECONDS)

    # --- one stream ------------------------------------------------------------------------------

    async def serve(self, _: object, context: _Context) -> None:
        """Serve one stream from hello to end."""
        stream = _Stream(context)
        session: _Session | None = None
        try:
            hello = await self._hello(context)
            if hello is None:
                return
            session = self._open(hello)
            stream.worker, stream.last = session.worker, hello.draining
            if session.stream is not None:
                session.stream.end(SequenceGapError("the sender opened another stream for this session"))
            session.stream = stream
            self._streams.add(stream)
            await context.write(self._welcome(session, hello).SerializeToString())
            await self._carry(session, stream)
        except TuplewireError as error:
            await self._refused(context, error)
        finally:
            stream.finished.set()
            self._streams.discard(stream)
            if session is not None and session.stream is stream:
                session.stream = None
                sender_id = session.state.sender_id
                if self._sessions.get(sender_id) is session:
                    self._sessions[sender_id] = self._sessions.pop(sender_id)  # idle for the least time

    async def _refused(self, context: _Context, error: TuplewireError) -> None:
        self.refused[code_of(error)] += 1
        logger.warning("stream.refused", extra={"peer": context.peer(), "reason": str(error)})
        await refuse(context, error)

    @staticmethod
    async def _hello(context: _Context) -> pb.Hello | None:
        try:
            async with asyncio.timeout(_HELLO_SECONDS):
                data = await context.read()
        except TimeoutError:
            raise MalformedError(f"no hello within {_HELLO_SECONDS:.0f} s") from None
        if data is grpc.aio.EOF:
            return None
        request = decode_send_request(data)
        if isinstance(request, OpaqueFrame) or not request.HasField("hello"):
            raise MalformedError("the first request of a Send stream must be a hello")
        return request.hello

    def _open(self, hello: pb.Hello) -> _Session:
        if hello.protocol_version != PROTOCOL_VERSION:
            raise ProtocolVersionError(
                f"this worker speaks protocol {PROTOCOL_VERSION}, the sender {hello.protocol_version}"
            )
        if hello.topology != self.topology:
            raise WrongTopologyError(
                f"this worker serves topology {self.topology!r}, the sender belongs to {hello.topology!r}"
            )
        check_id("sender_id", hello.sender_id)
        if hello.ack_mode not in pb.AckMode.values():
            raise MalformedError(f"ack mode {hello.ack_mode} is unknown to this worker")
        worker = hello.kind == pb.PEER_KIND_WORKER
        if self.draining and (not worker or (self._refuses_workers and not hello.draining)):
            raise DrainingError("the worker is draining; connect again later, or to another one")
        if hello.kind != pb.PEER_KIND_WORKER and (error := self.callback.not_ready) is not None:
            raise error
        session = self._sessions.get(hello.sender_id)
        if session is not None and session.state.incarnation > hello.incarnation:
            raise StaleIncarnationError(
                f"sender {hello.sender_id!r}: incarnation {session.state.incarnation} has taken over "
                f"from {hello.incarnation}"
            )
        if session is not None and session.state.incarnation < hello.incarnation:
            if session.stream is not None:
                session.stream.end(
                    StaleIncarnationError(
                        f"sender {hello.sender_id!r}: incarnation {hello.incarnation} has taken over"
                    )
                )
            session = None
        if session is None or session.epoch != hello.receiver_incarnation:
            # New, or what the sender remembers is not what we do: it starts over.
            if session is not None and session.stream is not None:
                session.stream.end(SequenceGapError("the sender has started this session over"))
            self._make_room()
            self._epoch = max(self._epoch + 1, time.time_ns())
            session = self._sessions[hello.sender_id] = _Session(self, hello, self._epoch)
            self._window = self.settings.window(len(self._sessions))
        return session

    def _make_room(self) -> None:
        """Forget the session that has been without a stream for longest, when there are too many."""
        if len(self._sessions) < self.settings.max_sessions:
            return
        # A session moves to the end when its stream ends.
        idle = next((key for key, each in self._sessions.items() if each.stream is None), None)
        if idle is None:
            raise ResourceLimitError(
                f"{self.settings.max_sessions} senders are connected already; raise max_sessions"
            )
        del self._sessions[idle]

    def _welcome(self, session: _Session, hello: pb.Hello) -> pb.SendResponse:
        settings = self.settings
        state = session.state
        update = state.resume(hello.acknowledged)
        ack = update_to_wire(update)
        initial = state.credit.initial
        return pb.SendResponse(
            welcome=pb.Welcome(
                protocol_version=PROTOCOL_VERSION,
                receiver_id=settings.worker_id,
                receiver_incarnation=session.epoch,
                last_sequence=ack.sequence,
                ack_mode=pb.ACK_MODE_PROCESSED
                if session.ack_mode is AckMode.PROCESSED
                else pb.ACK_MODE_QUEUED,
                initial_credit=grant_to_wire(Grant(0, initial.messages, initial.size_bytes, 0)),
                credits=ack.credits,
                max_message_bytes=settings.session.max_message_bytes,
                max_frame_bytes=settings.session.max_request_bytes,
                refusals=ack.refusals,
                load=self._loads,
            )
        )

    async def _carry(self, session: _Session, stream: _Stream) -> None:
        """Read to the end, and write what there is to say until nothing is left."""
        if stream.ending is not None:
            raise stream.ending
        writer = asyncio.create_task(self._write(session, stream), name="acknowledge")
        stream.waiting = asyncio.current_task()
        try:
            await self._read(session, stream)
            stream.finished.set()
            stream.wake.set()
            await asyncio.wait([writer])
        except asyncio.CancelledError:
            if stream.ending is None:
                raise
            raise stream.ending from None
        except TuplewireError as error:
            stream.ending = error
            raise
        finally:
            stream.waiting = None
            stream.finished.set()
            stream.wake.set()
            await finish_writing(writer)

    async def _read(self, session: _Session, stream: _Stream) -> None:
        context = stream.context
        while (data := await context.read()) is not grpc.aio.EOF:
            request = decode_send_request(data)
            if isinstance(request, OpaqueFrame):
                self._frame(session, request)
                stream.wake.set()
                continue
            kind = request.WhichOneof("kind")
            if kind == "goodbye":
                if self._sessions.get(session.state.sender_id) is session:
                    del self._sessions[session.state.sender_id]
                    self._window = self.settings.window(len(self._sessions))
                return
            if kind == "follow":
                session.state.credit.follow(request.follow.tasks)
                stream.wake.set()
            if kind == "probe":
                session.state.probe(request.probe.acknowledged)
                stream.wake.set()
            if kind in {None, "hello"}:
                raise MalformedError(f"a request of kind {kind} within a stream")

    def _frame(self, session: _Session, frame: OpaqueFrame) -> None:
        groups = groups_of(frame)
        if not session.worker and any(group.via for group in groups):
            raise MalformedError("only a worker passes messages on")
        limit = self.settings.session.max_message_bytes
        for group in groups:
            if len(group.data) > limit and (size := max(group.sizes())) > limit:
                raise PayloadRefusedError(
                    f"a message of {size} bytes to task {group.task} is over the limit of {limit}"
                )
        if not session.state.accept(frame.sequence, groups):
            return
        counts = self._count(session.source)
        counts[0] += sum(map(len, groups))
        counts[1] += 1
        counts[2] += sum(len(group.data) for group in groups)
        for via, some in by_via(groups).items():
            self._deliver(session, frame, some, session.origin_of(via))

    def _deliver(
        self, session: _Session, frame: OpaqueFrame, groups: Sequence[TaskGroup], origin: _Origin
    ) -> None:
        batch = ReceivedBatch.arrived(groups, origin, frame.assignment_version)
        try:
            self.callback.recv(batch)
        except Exception:
            logger.exception("callback.failed", extra={"peer": session.state.sender_id})
            batch.refusals = [
                (group, RefusedError("the receiver failed; its log says why")) for group in groups
            ]
        refused = set()
        for group, error in batch.refusals:
            refused.add(id(group))
            self.refused[error.code] += len(group)
            session.state.refuse(frame.sequence, group, error)
        if not batch.held:
            for group in groups:
                if id(group) not in refused:
                    session.state.credit.released(group.lane, len(group), len(group.data))

    def _count(self, source: str) -> list[int]:
        counts = self._received.get(source)
        if counts is None:
            if len(self._received) >= MAX_SOURCES:
                source = OTHER_SOURCE
            counts = self._received.setdefault(source, [0, 0, 0])
        return counts

    async def _write(self, session: _Session, stream: _Stream) -> None:
        finished = False
        while not finished:
            await stream.wake.wait()
            stream.wake.clear()
            finished = stream.finished.is_set() and not self._lingers(session, stream)
            notices, stream.notices = stream.notices, {}
            for notice in notices.values():
                await stream.context.write(notice.SerializeToString())
            # What is new since another stream has taken the session over is for that one to say.
            update = session.state.update() if session.stream is stream else None
            if update is not None:
                await stream.context.write(pb.SendResponse(ack=update_to_wire(update)).SerializeToString())

    def _lingers(self, session: _Session, stream: _Stream) -> bool:
        """Whether a sender that has stopped writing for our drain is still to hear what is processed."""
        ending = self._ending or stream.ending is not None
        return self.draining and not ending and session.origin.eager and not session.state.credit.idle
