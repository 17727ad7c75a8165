"""The Send RPC: one stream per sender. Hello and frames in; acknowledgements, credit and notices out.

Used by streamed_transport.py. Owns the open streams, sessions (sender_sessions.py) and departures to report.
Call only from the event loop. Design: docs/design/sessions.md, docs/design/drain.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tuplewire.errors import (
    DrainingError,
    MalformedError,
    PayloadTooLargeError,
    SequenceGapError,
    StaleIncarnationError,
    TuplewireError,
)
from tuplewire.session.flow import OutFrame
from tuplewire.settings.config import PROTOCOL_VERSION
from tuplewire.wire import messaging_pb2 as pb
from tuplewire.wire.codec import closed_flows_of, decode, groups_of
from tuplewire.wire.opaque_pb2 import OpaqueFrame
from tuplewire_service.messaging.base import AcceptedPeers
from tuplewire_service.messaging.reception import Reception
from tuplewire_service.messaging.sender_sessions import SenderSessions, SenderStream, Session
from tuplewire_service.messaging.server_stream import (
    AccessRights,
    ServerStream,
    StreamService,
    check_id,
    finish_writing,
)

_FRAME_TYPES = (OpaqueFrame, OutFrame)
_MAX_LOADS = 10_000
"""Maximum number of loads in one message: 100 to 200 KB."""
_MAX_DEPARTURES = 100
"""Maximum number of recent departures that are reported to a reconnecting worker."""
_STREAM_CLOSE_SECONDS = 1.0
"""Seconds for a sender to end its stream after a drain notice, and for end() to await the streams."""


@dataclass(eq=False)
class SendService(StreamService):
    """All Send streams of one bound server. Call only from the event loop."""

    reception: Reception

    def __post_init__(self) -> None:
        self.receiver_ready = asyncio.Event()
        """Set once a callback or recv() receives messages; until then, senders retain them."""
        self.intake = AcceptedPeers.ALL
        self._ending = False
        self.sender_sessions = SenderSessions(self.settings, self.reception.forget)
        self._last_session_id = 0
        self._streams: set[SenderStream] = set()
        self._loads = pb.LoadReport()
        self._departure_count = 0
        self._departures: deque[tuple[int, pb.Departure]] = deque(maxlen=_MAX_DEPARTURES)

    def send_load(self, loads: Mapping[int, float]) -> None:
        """Report loads to all senders. A later sender gets only loads above 0, at most 10,000 of them."""
        items = list(loads.items())
        for start in range(0, len(items), _MAX_LOADS):
            # The key of a part is its start, so that a later report replaces only the same part.
            notice = pb.SendResponse(load=_make_load_report(items[start : start + _MAX_LOADS]))
            for stream in self._streams:
                stream.notify(notice, start)
        self._loads = _make_load_report([each for each in items if each[1]][:_MAX_LOADS])

    def send_backpressure(self, worker_id: str, congested: Sequence[int], relieved: Sequence[int]) -> None:
        """Report congested and relieved tasks to every sender."""
        found = pb.BackpressureStatus(worker_id=worker_id, congested_tasks=congested, relieved_tasks=relieved)
        for stream in self._streams:
            stream.notify(pb.SendResponse(backpressure=found))

    def announce_departures(self, departures: Sequence[pb.Departure]) -> None:
        """Notify every worker before the next acknowledgement, or when it reconnects."""
        for each in departures:
            self._departure_count += 1
            self._departures.append((self._departure_count, each))
            for stream in self._streams:
                # Programs forward nothing, so need no notice; see docs/design/moves.md (workers that drain).
                if stream.peer_level is not AcceptedPeers.ALL:
                    notice = pb.SendResponse(departures=pb.Departures(departures=[each]))
                    stream.notify(notice, self._departure_count)

    async def set_accepted_peers(self, intake: AcceptedPeers) -> None:
        """Accept new messages only from these peers, and acknowledge accepted messages.

        Senders end the streams: they stop writing, and read until the last acknowledgement. If this side
        closed the stream, that acknowledgement could be lost, and the sender would resend. Senders that wait
        for processing continue to receive releases until end(), or until they may reconnect.
        """
        self.intake = intake
        streams = [stream for stream in self._streams if stream.peer_level > intake]
        for stream in self._streams:
            stream.wake.set()  # senders that wait for releases may now reconnect
        for stream in streams:
            if not stream.drain_notified:  # once: a notified sender ends its side
                stream.drain_notified = True
                stream.notify(pb.SendResponse(drain=pb.Drain()))
        # A sender that hangs is no longer read, but still receives its acknowledgements: otherwise it would
        # send the messages again. See docs/design/drain.md (senders during a drain).
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STREAM_CLOSE_SECONDS):
                for stream in streams:
                    await stream.read_finished.wait()
        for stream in streams:
            if not stream.read_finished.is_set():
                stream.stop_reading()

    async def end(self) -> None:
        """End every stream after its pending messages, at the end of a drain."""
        self._ending = True
        for stream in self._streams:
            stream.wake.set()
        tasks = [stream.task for stream in self._streams if stream.task is not None]
        # A peer that does not read blocks its writer, until the transport ends the stream.
        if tasks:
            await asyncio.wait(tasks, timeout=_STREAM_CLOSE_SECONDS)

    async def serve(self, server_stream: ServerStream) -> None:
        """Serve one stream from hello to end."""
        stream = SenderStream(server_stream)
        session: Session | None = None
        try:
            # For the ends without a session, see StreamService; for the others, see _serve_stream().
            access = server_stream.admit()
            with access.track_stream(stream.end):
                data = await self.pending_handshakes.read_first(server_stream.read, "hello")
                if data is None:
                    return
                request = _decode_request(data)
                if isinstance(request, _FRAME_TYPES) or not request.HasField("hello"):
                    raise MalformedError("the first request of a Send stream must be a hello")
                hello = request.hello
                peer_level = _peer_level(hello, access)
                session = self._open_session(hello, peer_level, access)
                stream.peer_level = peer_level
                # The newest stream carries the session; an older one may be broken without notice.
                if session.stream is not None:
                    session.stream.end(SequenceGapError("the sender opened another stream for this session"))
                session.stream = stream
                session.address = server_stream.peer
                self.sender_sessions.on_connected(session)
                self._on_worker_connection(session, connected=True)
                self._streams.add(stream)
                await server_stream.write(self._make_welcome(session, hello).SerializeToString())
                await self._serve_stream(session, stream)
        except TuplewireError as error:
            await self._refuse(server_stream, error, with_error=session is not None)
        finally:
            stream.read_finished.set()
            self._streams.discard(stream)
            # A newer stream may have taken the session over.
            if session is not None and session.stream is stream:
                session.stream = None
                if self.sender_sessions.on_disconnected(session):
                    self._on_worker_connection(session, connected=False)

    def _on_worker_connection(self, session: Session, *, connected: bool) -> None:
        if session.worker_number:
            self.reception.callback.on_worker_connection(session.worker_number, connected=connected)

    def _open_session(self, hello: pb.Hello, peer_level: AcceptedPeers, access: AccessRights) -> Session:
        self._check_peer("sender", hello)
        access.check_send(hello.topology, as_worker=hello.kind == pb.PEER_KIND_WORKER)
        check_id("sender_id", hello.sender_id)
        if hello.ack_mode not in pb.AckMode.values():
            raise MalformedError(f"ack mode {hello.ack_mode} is unknown; use queued or processed")
        # Only programs have to wait: without an assignment, a worker queues the messages of other workers.
        # See docs/design/moves.md (order during a move).
        if peer_level is AcceptedPeers.ALL and (error := self.reception.callback.not_ready_error) is not None:
            raise error
        if peer_level > self.intake:
            raise DrainingError("the worker is draining; connect again later, or to another one")
        session = self.sender_sessions.by_key.get((access.owner, hello.sender_id))
        if session is not None and session.state.incarnation != hello.incarnation:
            newest = max(session.state.incarnation, hello.incarnation)
            stale_error = StaleIncarnationError(
                f"sender {hello.sender_id!r}: incarnation {newest} has taken over; stop this one"
            )
            if newest != hello.incarnation:
                raise stale_error
            if session.stream is not None:
                session.stream.end(stale_error)
            # The previous process of the sender is lost.
            self._on_worker_connection(session, connected=False)
            session = None
        if session is None or session.session_id != hello.session_id:
            # A new session, or the sender remembers another one: it starts over.
            if session is not None and session.stream is not None:
                session.stream.end(SequenceGapError("the sender has started this session over"))
            self.sender_sessions.forget((access.owner, hello.sender_id))
            # The clock makes it unique across restarts of this worker.
            session_id = self._last_session_id = max(self._last_session_id + 1, time.time_ns())
            session = Session(hello, access, session_id, self.sender_sessions)
            session.departure_count_at_start = self._departure_count
            self.sender_sessions.add(session)
        # Each stream has its own rights, because tokens and rules may have changed.
        session.access = access
        return session

    def _make_welcome(self, session: Session, hello: pb.Hello) -> pb.SendResponse:
        settings = self.settings
        ack = session.state.build_full_state(hello.acknowledged_sequence)
        initial = session.state.credit.initial_share
        return pb.SendResponse(
            welcome=pb.Welcome(
                protocol_version=PROTOCOL_VERSION,
                worker_id=settings.worker_id,
                session_id=session.session_id,
                accepted_sequence=ack.sequence,
                ack_mode=session.ack_mode,
                initial_credit=pb.TaskCredit(messages=initial.messages, bytes=initial.size_bytes),
                credits=ack.credits,
                max_message_bytes=settings.session.max_message_bytes,
                max_request_bytes=settings.session.max_request_bytes,
                refusals=ack.refusals,
                assignment_version=self.reception.callback.assignment_version,
                load=self._loads,
                worker_incarnation=settings.incarnation,
                departures=[
                    each
                    for number, each in self._departures
                    if session.worker_number and number > session.departure_count_at_start
                ],
            )
        )

    async def _serve_stream(self, session: Session, stream: SenderStream) -> None:
        """Read to the end, and write until all messages are sent."""
        # The ways in which a stream ends:
        # 1. The sender sends a goodbye, or closes its side: the last acknowledgement is written.
        # 2. A drain: the sender closes its side in time. A sender that waits for releases gets them first.
        # 3. A drain, and the sender continues: stop_reading() ends the read, the rest is sent, then an error.
        # 4. stream.end(): another stream has the session now, or the admission was withdrawn.
        # 5. A request violates the protocol or a limit: _read() raises the error.
        # 6. The connection breaks: the read ends, or raises StreamBroken. gRPC also cancels this task.
        # 7. The server stops: the transport cancels this task.
        # The stream may have been ended while the welcome was written (case 4).
        if stream.ending.done():
            raise stream.ending.result()
        writer = asyncio.create_task(self._write(session, stream), name="acknowledge")
        # In a task of its own, a message does not continue the coroutines of the caller, too.
        reader = stream.reader = asyncio.create_task(self._read(session, stream), name="receive")
        if stream.reading_ended:  # case 3, while the welcome was written
            reader.cancel()
        try:
            await asyncio.wait([reader, stream.ending], return_when=asyncio.FIRST_COMPLETED)
            if not (stream.ending.done() or reader.cancelled()):
                reader.result()
            stream.read_finished.set()
            stream.wake.set()
            # In cases 1 to 3, the writer ends after the last update.
            await asyncio.wait([writer, stream.ending], return_when=asyncio.FIRST_COMPLETED)
            if stream.ending.done():
                raise stream.ending.result()
            if stream.reading_ended:
                raise DrainingError("the worker is draining; connect again later, or to another one")
        except TuplewireError as error:
            stream.end(error)
            raise
        finally:
            reader.cancel()
            stream.read_finished.set()
            stream.wake.set()
            await finish_writing(writer)
            await asyncio.gather(reader, return_exceptions=True)
            stream.reader = None  # its exception refers to the stream

    async def _read(self, session: Session, stream: SenderStream) -> None:
        while (data := await stream.server_stream.read()) is not None:
            request = _decode_request(data)
            if isinstance(request, _FRAME_TYPES):
                # A frame without a receiver is not acknowledged: it waits here, and its sender retains it.
                await self.receiver_ready.wait()
                self._accept_frame(session, request)
                # Other frames share an acknowledgement; see docs/design/credit.md.
                stream.frame_event.add(immediately=request.ack_immediately or session.state.urgent)
                continue
            kind = request.WhichOneof("kind")
            if kind == "goodbye":
                # Programs must not declare that a worker departed: waiting messages would continue too early.
                if session.worker_number and request.goodbye.departures:
                    self.reception.callback.on_workers_departed(request.goodbye.departures)
                # A newer incarnation may have replaced the session.
                if self.sender_sessions.by_key.get(session.key) is session:
                    self.sender_sessions.forget(session.key)
                return
            if kind == "watch_releases":
                session.state.credit.watch_releases(request.watch_releases.tasks)
                session.wake()
            if kind == "probe":
                # A caller waits for the changes: the answer is not delayed.
                if not request.probe.changes_only:
                    session.state.request_full_state(request.probe.acknowledged_sequence)
                stream.wake.set()
            if kind in {None, "hello"}:
                raise MalformedError(f"unexpected request of kind {kind} after the hello")

    def _accept_frame(self, session: Session, frame: OpaqueFrame | OutFrame) -> None:
        # The local transport passes groups in memory, without encoding.
        if isinstance(frame, OutFrame):
            groups, closed = frame.groups(), frame.closed_flows
        else:
            groups, closed = groups_of(frame), closed_flows_of(frame)
        limit = self.settings.session.max_message_bytes
        for group in groups:
            # Forwarded messages need no credit, so a program could send them without a bound.
            if group.path and not session.worker_number:
                raise MalformedError("only a worker may forward messages")
            # The sum comes first: nearly always, the whole group is within the limit.
            if group.size_bytes > limit and (size := max(group.message_sizes())) > limit:
                raise PayloadTooLargeError(
                    f"a message of {size} bytes to task {group.task} exceeds max_message_bytes ({limit})"
                )
        denied = session.access.denied_groups(groups)
        accepted = session.state.accept(frame.sequence, groups, denied, closed)
        # A repeated frame was accepted before.
        if accepted is None:
            return
        self.reception.count(session.source, groups)
        for group, error in denied:
            self.reception.refused_messages[error.code] += group.count
        self.reception.deliver(session, frame.sequence, accepted, frame.assignment_version)

    async def _write(self, session: Session, stream: SenderStream) -> None:
        finished = False
        while not finished:
            await stream.wake.wait()
            stream.wake.clear()
            stream.frame_event.mark_sent()
            # Checked before the update is taken, so that the last round includes everything that was read.
            finished = stream.read_finished.is_set() and not self._awaits_releases(session, stream)
            notices, stream.notices = stream.notices, {}
            # Notices precede the update: a departure must arrive before the releases of its messages.
            for notice in notices.values():
                await stream.server_stream.write(notice.SerializeToString())
            # After a takeover, updates belong to the newer stream.
            update = session.state.next_ack() if session.stream is stream else None
            if update is not None:
                await stream.server_stream.write(pb.SendResponse(ack=update).SerializeToString())
                if session.state.has_more:
                    stream.wake.set()
                    finished = False

    def _awaits_releases(self, session: Session, stream: SenderStream) -> bool:
        """Return True if a sender that stopped writing because of a drain still waits for releases."""
        if self._ending or stream.ending.done() or stream.peer_level <= self.intake:
            return False
        return session.awaits_releases and not session.state.credit.all_released


def _decode_request(data: bytes | OutFrame) -> pb.SendRequest | OpaqueFrame | OutFrame:
    return decode(pb.SendRequest, data) if isinstance(data, bytes) else data  # not encoded in memory


def _peer_level(hello: pb.Hello, access: AccessRights) -> AcceptedPeers:
    """Return the lowest level that accepts a sender."""
    if access.is_own_program:
        return AcceptedPeers.OWN_PROGRAM  # a drain never notifies it, but waits for its messages
    if hello.kind != pb.PEER_KIND_WORKER:
        return AcceptedPeers.ALL
    return AcceptedPeers.DRAINING_WORKERS if hello.draining else AcceptedPeers.WORKERS


def _make_load_report(loads: Sequence[tuple[int, float]]) -> pb.LoadReport:
    return pb.LoadReport(tasks=[pb.TaskLoad(task=task, load=load) for task, load in loads])
