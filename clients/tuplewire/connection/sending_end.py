"""The sending end of a session with one worker: it writes frames, reads acknowledgements, and reconnects.

Messages that are accepted while a frame is being written are sent with the next one. Used by the clients, the
worker's router and connections, and the streamed transports. Owns the send buffer and the stream. Call only
from the event loop, except close(), abort() and problem_suffix(). Design: docs/design/sessions.md.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Collection, Coroutine, Sequence
from typing import Any

from tuplewire.connection.ack_handler import AckHandler
from tuplewire.connection.loop import EventLoopThread
from tuplewire.connection.pacer import Pacer
from tuplewire.connection.reconnecting_session import Identity, ReconnectingSession
from tuplewire.connection.send_buffer import SendBuffer
from tuplewire.connection.stream import ClientStream, ProbeTimer, StreamOpener
from tuplewire.errors import DrainingError, ProtocolVersionError, TuplewireError, refusal_error
from tuplewire.session.flow import OutFrame
from tuplewire.session.ledger import DropReason, SendCounts
from tuplewire.session.pressure import ReportedLoads, SendingPressure
from tuplewire.session.send import SendSession
from tuplewire.session.send_events import SendEvents
from tuplewire.settings.config import PROTOCOL_VERSION, AckMode, SessionSettings
from tuplewire.text.events import event_logger
from tuplewire.values.group import TaskGroup
from tuplewire.wire import messaging_pb2 as pb
from tuplewire.wire.translate import code_name

logger = event_logger(__name__)

_GOODBYE_SECONDS = 1.0


class SendingEnd(ReconnectingSession):
    """Sends the messages of its buffer, which is thread-safe for callers, to one worker."""

    method = "Send"

    def __init__(
        self,
        address: str,
        identity: Identity,
        settings: SessionSettings,
        thread: EventLoopThread,
        open_stream: StreamOpener,
        expected_id: str = "",
        events: SendEvents | None = None,
    ) -> None:
        """Describe a session; thread.start_connection() connects. Arguments: see ReconnectingSession."""
        super().__init__(address, identity, settings, thread.loop, open_stream, expected_id)
        self.thread = thread
        self._events = events or SendEvents()
        self.buffer = SendBuffer(address, settings, self._events, self._wake, self.problem_suffix)
        self.ack_handler = AckHandler(self.buffer)
        self.loads = ReportedLoads(settings.load_expiry_seconds)
        """The loads that the receiver reports for its tasks."""
        self.congested_tasks = ReportedLoads(settings.load_expiry_seconds)
        """The tasks that it reports as congested; for display only, as credit decides."""
        self.counts = SendCounts()
        self.may_write = True
        """False if no more frames are written, so that no peer receives messages that withdraw() returns."""
        self._session = self.buffer.session
        self._lock = self.buffer.lock
        self._pressure = SendingPressure(self._session, self._loop.time, self._events.pressure)
        self._write_event = asyncio.Event()  # set when there may be something to write
        self._probe_due = False
        self._probe_timer = ProbeTimer(self._loop)
        self._pacer = Pacer(settings.linger_seconds)
        self._receiver_draining = False  # True once the receiver has announced its drain on this stream

    def __repr__(self) -> str:
        return f"<SendingEnd {self.address} {self.buffer!r} {self.connection_state}>"

    def _wake(self) -> None:
        """Schedule writing, and the callbacks for settled messages; from any thread.

        On the loop the writer is woken directly: a worker's message waits one turn less.
        """
        buffer = self.buffer
        if threading.get_ident() == buffer.loop_thread_id:
            self._write_event.set()
            if not self.connected:  # no frame is written
                self._pressure.refresh(connected=False)
            if self._session.settled:
                self._loop.call_soon(buffer.run_callbacks)
            return
        submitted = buffer.submitted
        pass_number = submitted.pass_number
        if submitted.notified_pass != pass_number:
            self._loop.call_soon_threadsafe(self._on_wake)
            submitted.notified_pass = pass_number  # after the call, as an interrupt may come between
        if self._session.settled:
            self._loop.call_soon_threadsafe(buffer.run_callbacks)

    def _on_wake(self) -> None:
        buffer = self.buffer
        if self._pacer.lingering:
            if self.connected and not (buffer.wants_acks or buffer.offers):
                return  # the next frame includes it, with later messages
            self._pacer.release_next()
        with self._lock:
            buffer.move_submitted()
        self._write_event.set()
        if not self.connected:  # no frame is written
            self._pressure.refresh(connected=False)

    def problem_suffix(self) -> str:
        """Return `; ADDRESS is not connected: REASON` as the end of an error; empty if it is reachable."""
        is_reachable = self.connected or (self.counts.connections and not self.ack_handler.disconnected)
        return "" if is_reachable else f"; {self.address} is {self.connection_state}"

    @property
    def session(self) -> SendSession:
        """The send session, with all submitted messages."""
        with self._lock:
            self.buffer.move_submitted()
        return self._session

    @property
    def blocked_tasks(self) -> Collection[int]:
        """The tasks with messages that the worker does not accept at the moment."""
        with self._lock:
            return self._pressure.blocked_tasks()

    # --- life ------------------------------------------------------------------------------------

    # The first of these calls to stop waiting decides about the pending messages:
    # 1. close_async() drops all messages without an acknowledgement at its timeout.
    # 2. withdraw() returns these messages. A worker routes them again.
    # 3. abort() drops them immediately.
    # A cancelled call leaves a session that accepts no more messages. Another call must then end it.

    async def close_async(self, timeout: float = 10.0) -> None:
        """Wait for acknowledgements; then send the goodbye, or drop the others at the timeout."""
        await self._settle_and_say_goodbye(timeout)
        await self._end()  # 1.

    async def withdraw(self, timeout: float) -> list[tuple[TaskGroup, Any]]:
        """Close, and return the unacknowledged messages with their inbound sessions; none at a second call.

        See PendingMessages.withdraw().
        """
        await self._settle_and_say_goodbye(timeout)
        # Another call was first, and has dropped or returned the messages.
        if self.buffer.ended:
            return []
        await self.suspend()
        withdrawn = self.ack_handler.withdraw()  # 2.
        self._refresh()
        return withdrawn

    async def _settle_and_say_goodbye(self, timeout: float) -> None:
        self.buffer.stop_accepting()
        await self.buffer.wait_settled(timeout)
        # The goodbye follows the last acknowledgement: the receiver then forgets the session.
        if self.connected and not self.buffer.pending_messages and self._run_task is not None:
            self.is_closed = True
            self._write_event.set()
            await asyncio.wait([self._run_task], timeout=_GOODBYE_SECONDS)

    async def _end(self) -> None:
        if not self.buffer.ended:
            await self.suspend()
            with self._lock:
                if self.buffer.mark_ended():
                    self.buffer.drop_all(DropReason.CLOSED)
            self._refresh()

    def close(self, timeout: float = 10.0) -> None:
        """Do the same as close_async, from any other thread."""
        if not self.buffer.ended:
            self._block_on(self.close_async(timeout))

    def abort(self) -> None:
        """Drop all pending messages, now; from any other thread."""
        if not self.buffer.ended:
            self.buffer.stop_accepting()
            self._block_on(self._end())  # 3.

    def _block_on(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine on the loop, and wait as flush() does.

        A signal handler's thread may have the lock that the loop needs. A Future's lock would stay acquired
        after an interrupt, and the loop would wait for it indefinitely.
        """
        done: list[asyncio.Task[None]] = []

        def end(task: asyncio.Task[None]) -> None:
            with self._lock:
                done.append(task)
                self.buffer.changed.notify_all()

        self.thread.start(coroutine, end)
        with self._lock:
            self.buffer.changed.wait_for(lambda: bool(done), None)
        done[0].result()

    def resume(self) -> None:
        """Start to connect, at first or after a fork, unless it was closed."""
        self.buffer.loop_thread_id = threading.get_ident()
        if not self.buffer.ended and self.buffer.failure is None:  # a close() may wait for acknowledgements
            self.start()

    def _on_lost(self, error: TuplewireError) -> None:
        if self._receiver_draining:  # over ZeroMQ, the last message of a receiver that shuts down may be lost
            error = DrainingError(f"{self.address} is draining; it accepts no new messages")
            self._receiver_draining = False
        fields = {"address": self.address, "reason": str(error)}
        was_connected = self.connected
        if self.is_closed:
            logger.info("connection.closed", extra={"address": self.address})
        elif was_connected:
            logger.info("connection.lost", extra=fields)
        elif str(error) != self._last_problem:
            logger.info("connection.attempt_failed", extra=fields)
        self._last_problem = str(error)
        self.connected = False
        self.ack_handler.on_disconnected(closed_cleanly=self.is_closed or isinstance(error, DrainingError))
        if was_connected:
            self._events.on_disconnected()
        self._pressure.refresh(connected=False)

    def _on_failed(self, error: TuplewireError) -> None:
        self.buffer.fail(error)
        logger.error("connection.ended", extra={"address": self.address, "reason": str(error)})
        self._refresh()

    def _refresh(self) -> None:
        self._pressure.refresh(connected=self.connected)
        self.buffer.run_callbacks()

    def _is_retryable(self, error: TuplewireError) -> bool:
        # Between workers no error is final: the other one may be fixed or replaced while messages wait.
        return self.identity.is_worker or super()._is_retryable(error)

    def _background_tasks(self, stream: ClientStream) -> Sequence[Coroutine[Any, Any, None]]:
        return self._write(stream), self._probe_timer.run(self._probe)

    async def _open(self, stream: ClientStream) -> None:
        self._receiver_draining = False
        identity, processed = self.identity, self._settings.ack_mode is AckMode.PROCESSED
        hello = pb.Hello(
            protocol_version=PROTOCOL_VERSION,
            topology=identity.topology,
            sender_id=identity.client_id,
            incarnation=identity.incarnation,
            kind=pb.PEER_KIND_WORKER if identity.is_worker else pb.PEER_KIND_CLIENT,
            ack_mode=pb.ACK_MODE_PROCESSED if processed else pb.ACK_MODE_QUEUED,
            acknowledged_sequence=self._session.acked_frame,
            session_id=self._session.session_id,
            draining=self._events.is_draining(),
            expected_worker_id=self.expected_worker_id,
        )
        answer = await self._exchange(stream, pb.SendRequest(hello=hello))
        welcome = pb.SendResponse.FromString(answer).welcome
        if welcome.protocol_version != PROTOCOL_VERSION:
            raise ProtocolVersionError(
                f"{self.address} uses protocol {welcome.protocol_version}, this side {PROTOCOL_VERSION}: "
                "bring both to one release"
            )
        if welcome.departures:
            self._events.on_departed(welcome.departures)
        self.loads.update({each.task: each.load for each in welcome.load.tasks}, time.monotonic())
        self.ack_handler.on_connected(welcome)
        self.connected = not self.buffer.ended
        self.counts.connections += 1
        self._probe_timer.reset()
        self._pressure.on_connected()
        logger.info("connection.ready", extra={"address": self.address, "worker": welcome.worker_id})
        self._refresh()
        self._write_event.set()

    def _probe(self) -> None:
        """Request all updates again if expected ones do not arrive: they may be lost."""
        with self._lock:
            self._probe_due = self._session.awaits_update
        if self._probe_due or time.monotonic() >= self.ack_handler.close_unused_at:
            self._write_event.set()

    async def _write(self, stream: ClientStream) -> None:
        """Write until this side of the stream ends. Each pass does the first step that applies.

        1. The receiver drains: end this side.
        2. There is a frame: write it. Then wait, unless there is more to write.
        3. A caller waits, and the last frame requested no acknowledgement: request one.
        4. The session has finished: send the goodbye, and end this side.
        5. Otherwise, wait.

        A due probe and new tasks to watch are written before steps 2 to 5.
        """
        pressure, ack_requested = self._pressure, False
        while True:
            self._write_event.clear()
            # 1. The receiver acknowledges the frames that it has, and then ends the stream.
            if self._receiver_draining:
                await stream.done_writing()
                return
            if self._probe_due:
                self._probe_due = False
                probe = pb.Probe(acknowledged_sequence=self._session.acked_frame)
                await stream.write(pb.SendRequest(probe=probe).SerializeToString())
            if not self.ack_handler.watch_list_sent:
                watched = self.ack_handler.take_watch_list()
                request = pb.SendRequest(watch_releases=pb.WatchReleases(tasks=watched))
                await stream.write(request.SerializeToString())
            frame = self._next_frame()
            if frame is None:
                # 3. Without a request, acknowledgements may be delayed; see docs/design/credit.md.
                if self.buffer.wants_acks:
                    self.buffer.wants_acks = False
                    if not ack_requested:
                        request = pb.SendRequest(probe=pb.Probe(changes_only=True))
                        await stream.write(request.SerializeToString())
                    continue
                # 4. The goodbye reports departures. After it, the receiver forgets the session.
                if self.is_closed:
                    goodbye = pb.Goodbye(departures=self._events.get_departures())
                    await stream.write(pb.SendRequest(goodbye=goodbye).SerializeToString())
                    await stream.done_writing()
                    return
                pressure.on_idle()  # 5.
                await self._write_event.wait()
                pressure.on_resume()
                ack_requested = False
                continue
            ack_requested = frame.ack_immediately  # 2.
            pressure.on_write(frame)
            frame.assignment_version = self._events.get_assignment_version()
            await stream.write_frame(frame)
            pressure.on_resume()
            # Messages that arrive during this wait share the next frame; see docs/design/credit.md.
            if wait := self._pacer.record_write(time.monotonic(), frame.size_bytes):
                await self._pacer.linger(wait)
            elif not (self._session.has_more or self.buffer.wants_acks):  # wait without another pass
                await self._write_event.wait()
                ack_requested = False

    def _next_frame(self) -> OutFrame | None:
        """Return the next frame to write; None if there is none, or no connection."""
        with self._lock:
            if not (self.connected and self.may_write):
                return None
            submitted = self.buffer.submitted
            # A pass after each notification: without it, senders would not notify this loop again.
            if submitted.entries or self.buffer.offers or submitted.notified_pass == submitted.pass_number:
                self.buffer.move_submitted()
            if (now := time.monotonic()) >= self.ack_handler.close_unused_at:
                self.ack_handler.close_unused()
            frame = self._session.next_frame(now, urgent=self.buffer.wants_acks)
            if len(self._session.blocked_flows) != self._pressure.waiting_flows:
                self._pressure.refresh(connected=True)
            if frame is not None:
                self.counts.messages += frame.messages
                self.counts.frames += 1
                self.counts.bytes += frame.size_bytes
            return frame

    async def _read(self, stream: ClientStream) -> None:
        while (data := await stream.read()) is not None:
            response = pb.SendResponse.FromString(data)
            kind = response.WhichOneof("kind")
            if kind == "ack":
                ack = response.ack
                if self._session.has_gap_before(ack):  # an earlier update was lost: request all of them
                    self._probe_due = True
                    self._write_event.set()
                    continue
                self._probe_timer.reset()
                self.ack_handler.apply_ack(ack)
                self._pacer.release_next()
                self._pressure.on_acknowledged()
                self._refresh()
                self._write_event.set()
            elif kind == "load":
                self.loads.update({each.task: each.load for each in response.load.tasks}, time.monotonic())
            elif kind == "backpressure":
                congested = dict.fromkeys(response.backpressure.congested_tasks, 1.0)
                self.congested_tasks.update(congested, time.monotonic())
                self.congested_tasks.forget(response.backpressure.relieved_tasks)
            elif kind == "drain":
                logger.info("peer.draining", extra={"address": self.address})
                self._receiver_draining = True
                self._write_event.set()
            elif kind == "departures":
                self._events.on_departed(response.departures.departures)
            elif kind == "ended":
                raise refusal_error(code_name(response.ended.code), response.ended.detail)
