"""The receiving end of a session, its current stream, and the shares of a bound server's sessions.

A connected sender has a share of every task's queue. After a disconnect it has a few seconds to reconnect,
then loses the share. Its queued messages reduce the other senders' shares until they are consumed. Its
session is remembered longer, so that it can resume without loss. Used by send_service.py and reception.py;
streamed_transport.py and worker/servers.py read its state. Owns sessions and shares. Call only from the event
loop. Exception: InboundSession.release(). Design: docs/design/credit.md.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from tuplewire.connection.stream import BatchedEvent
from tuplewire.errors import ResourceLimitError, TuplewireError
from tuplewire.session.credit import SessionCredit
from tuplewire.session.receive import ReceiveSession
from tuplewire.session.shares import Amount, QueueShares
from tuplewire.values.group import flow_id_of, worker_number
from tuplewire.wire import messaging_pb2 as pb
from tuplewire.wire.control_pb2 import GetStatusResponse, SessionStatus
from tuplewire_service.messaging.base import AcceptedPeers, InboundSession
from tuplewire_service.messaging.server_stream import AccessRights, ServerStream
from tuplewire_service.messaging.transport_settings import TransportSettings

CLIENT_SOURCE = "client"
OWN_PROGRAM_SOURCE = "executors"
SessionKey = tuple[str, str]
"""The owner, see AccessRights, and the sender's id. Without authentication, the owner is empty."""
MAX_SESSIONS = 10_000
"""Maximum number of senders that one server remembers."""
_MIN_WINDOW_MESSAGES = 64
_MAX_CACHED_INBOUNDS = 256
"""Maximum number of cached inbound sessions, because entry workers change over time."""


class SenderStream:
    """One stream of a session."""

    def __init__(self, server_stream: ServerStream) -> None:
        self.server_stream = server_stream
        self.wake = asyncio.Event()
        self.notices: dict[tuple[str, int], pb.SendResponse] = {}
        """Messages besides acknowledgements: the latest of each kind and part, as a peer may never read."""
        self.frame_event = BatchedEvent(self.wake, asyncio.get_running_loop())
        """Accepted frames without an acknowledgement, gathered unless the sender requests one."""
        self.task = asyncio.current_task()
        self.ending: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        """Done once the stream must end, with the error for its sender."""
        self.reader: asyncio.Task[None] | None = None
        self.peer_level = AcceptedPeers.ALL
        """The lowest intake level that accepts this stream."""
        self.drain_notified = False
        self.read_finished = asyncio.Event()
        self.reading_ended = False
        """True if reading ended before the sender closed its side."""

    def notify(self, notice: pb.SendResponse, part_key: int = 0) -> None:
        """Write this notice soon, replacing an earlier one of the same kind and part."""
        key = notice.WhichOneof("kind") or "", part_key
        # A relieved task is reported once, so a later status must not replace the report.
        if key[0] == "backpressure" and key in self.notices:
            earlier, later = self.notices[key].backpressure, notice.backpressure
            congested = {*earlier.congested_tasks} - {*later.relieved_tasks} | {*later.congested_tasks}
            relieved = {*earlier.relieved_tasks, *later.relieved_tasks} - {*later.congested_tasks}
            earlier.congested_tasks[:], earlier.relieved_tasks[:] = sorted(congested), sorted(relieved)
        else:
            self.notices[key] = notice
        self.wake.set()

    def stop_reading(self) -> None:
        """Stop reading from a sender that does not close its side; it still receives pending messages."""
        self.reading_ended = True
        if self.reader is not None:
            self.reader.cancel()

    def end(self, error: TuplewireError) -> None:
        """End the stream with an error, after a last acknowledgement; only the first error counts."""
        if not self.ending.done():
            self.ending.set_result(error)
            # Immediately: no frame may be accepted after the end.
            if self.reader is not None:
                self.reader.cancel()


class Session:
    """A sender's session; it outlives its streams. Call only from the event loop."""

    def __init__(
        self, hello: pb.Hello, access: AccessRights, session_id: int, sessions: SenderSessions
    ) -> None:
        self.session_id = session_id
        """Differs for each session of a sender, on this or another worker."""
        self.key = access.owner, hello.sender_id
        self.sender_id = hello.sender_id
        worker = hello.kind == pb.PEER_KIND_WORKER
        # The sender id of a worker: worker id, "/", a random id of the context, ".", connection number.
        worker_id = hello.sender_id.rpartition("/")[0] or hello.sender_id
        # Counts name only workers individually, because programs come and go with new ids.
        self.source = worker_id if worker else OWN_PROGRAM_SOURCE if access.is_own_program else CLIENT_SOURCE
        self.worker_number = worker_number(worker_id, hello.incarnation) if worker else 0
        # A hello without a mode means `queued`.
        processed = hello.ack_mode == pb.ACK_MODE_PROCESSED
        self.ack_mode = pb.ACK_MODE_PROCESSED if processed else pb.ACK_MODE_QUEUED
        # A worker forwards messages that are forwarded again only during a move, which waits for releases.
        self.awaits_releases = processed or worker
        credit = SessionCredit(
            sessions.shares,
            max_message_bytes=sessions.settings.session.max_message_bytes,
            grants_every_release=processed,
            blocked_sessions=sessions.tasks_without_credit,
        )
        self.state = ReceiveSession(hello.incarnation, credit)
        self.has_no_share = False
        """True if the sender has no share of the queues, because it was disconnected for too long."""
        self.address = ""
        """The sender's address, as the transport reports it, perhaps memory:PORT."""
        self.connection_changed_at = 0.0
        """Loop time of the last connect or disconnect."""
        self.expiry_timer: asyncio.TimerHandle | None = None
        """Ends the share of a disconnected sender, and later its session."""
        self.stream: SenderStream | None = None
        self.departure_count_at_start = 0
        self.access = access
        """The rights of the client that carries the session now."""
        self._inbounds: dict[int, _PathInboundSession] = {}
        self._sender_sessions = sessions

    def wake(self) -> None:
        """Wake the writer, because there may be an update for the sender."""
        if self.stream is not None:
            self.stream.wake.set()

    def status(self, now: float, window: int) -> SessionStatus:
        """Return the status at the loop time `now`. `window` is the window of each sender with a share."""
        credit = self.state.credit
        return SessionStatus(
            sender_id=self.sender_id,
            identity=self.key[0],
            worker_id=self.source if self.worker_number else "",
            address=self.address,
            connected=self.stream is not None,
            state_age_seconds=now - self.connection_changed_at,
            sent_messages=credit.received_messages,
            sent_bytes=credit.received_bytes,
            window_messages=0 if self.has_no_share else window,
            outstanding_messages=credit.received_messages - credit.released_messages,
            outstanding_bytes=credit.received_bytes - credit.released_bytes,
            blocking_task_count=credit.blocking_task_count,
        )

    def inbound_session(self, flow_path: int) -> InboundSession:
        """Return the inbound session of messages on a path, as from flow_path_of(); 0: sent directly."""
        inbound = self._inbounds.get(flow_path)
        if inbound is None:
            if len(self._inbounds) >= _MAX_CACHED_INBOUNDS:
                # Queued messages have their own reference to an inbound, so only the cache is lost.
                self._inbounds.clear()
            inbound = self._inbounds[flow_path] = _PathInboundSession(self, flow_path)
        return inbound

    def release(self, flow_id: int, messages: int, size_bytes: int) -> None:
        """Release messages."""
        if self.state.credit.on_released(flow_id, messages, size_bytes):
            self.wake()
        if self.has_no_share:
            self._sender_sessions.release(flow_id, messages, size_bytes)

    def end(self) -> None:
        """Mark the session as not resumable."""
        self.state.credit.on_disconnected()
        for inbound in self._inbounds.values():
            # Queued messages refer to it, and would keep this session in memory.
            inbound.session = self._sender_sessions
            inbound.sender_id = ""
        self._inbounds.clear()  # a reference cycle would delay freeing the session


class _PathInboundSession:
    """The source of a session's batches by one path. It is small: every queued message refers to one."""

    __slots__ = ("_loop", "_path", "_thread_id", "awaits_releases", "sender_id", "session", "worker_number")

    def __init__(self, session: Session, flow_path: int) -> None:
        self.session: Session | SenderSessions = session
        self.sender_id = session.sender_id
        self.worker_number, self.awaits_releases = session.worker_number, session.awaits_releases
        self._path = flow_path
        self._loop, self._thread_id = asyncio.get_running_loop(), threading.get_ident()

    def release(self, task: int, messages: int, size_bytes: int) -> None:
        if threading.get_ident() != self._thread_id:
            # pull() releases messages in the thread of its caller, but credit is not thread-safe.
            self._loop.call_soon_threadsafe(self.release, task, messages, size_bytes)
            return
        self.session.release(flow_id_of(task, self._path) if self._path else task, messages, size_bytes)


SHARE_LEASE_SECONDS = 3.0
"""Seconds that a disconnected sender keeps its share. A reconnect takes at most two seconds."""


class SenderSessions:
    """The sessions of one bound server. Call only from the event loop."""

    def __init__(self, settings: TransportSettings, on_last_session_end: Callable[[str], None]) -> None:
        """Start without sessions. `on_last_session_end` gets the id of a worker after its last session."""
        smallest = Amount(_MIN_WINDOW_MESSAGES, settings.session.max_message_bytes)
        self.shares = QueueShares(Amount(settings.receive_messages, settings.receive_bytes), smallest)
        self.settings = settings
        self.tasks_without_credit: Counter[int] = Counter()
        """By task, the number of connected sessions without credit; the longest blocked first."""
        self.by_key: dict[SessionKey, Session] = {}
        self._sharing_sessions: dict[SessionKey, Session] = {}
        self._on_disconnect = on_last_session_end

    def add_to(self, status: GetStatusResponse) -> None:
        """Add the numbers of sessions with and without a share, in all and by identity."""
        status.sharing_session_count += len(self._sharing_sessions)
        status.resumable_session_count += len(self.by_key) - len(self._sharing_sessions)
        window = self.shares.smallest_share.messages
        # Several servers of a worker add to the same status.
        if not status.HasField("smallest_window_messages") or window < status.smallest_window_messages:
            status.smallest_window_messages = window
        sharing = Counter(owner for owner, _ in self._sharing_sessions)
        for identity, count in Counter(owner for owner, _ in self.by_key).items():
            # Without authentication, the owner is empty, and there are no identities to count.
            if identity:
                identity_counts = status.identities[identity]
                identity_counts.sharing += sharing[identity]
                identity_counts.resumable = identity_counts.resumable + count - sharing[identity]

    def session_statuses(self) -> list[SessionStatus]:
        """Return the status of every session."""
        now, window = asyncio.get_running_loop().time(), self.shares.initial_share.messages
        return [each.status(now, window) for each in self.by_key.values()]

    def add(self, session: Session) -> None:
        """Add a new session. Raises ResourceLimitError if all remembered sessions are connected."""
        if len(self.by_key) >= MAX_SESSIONS:
            # A disconnected session moves to the end, so the first has been disconnected longest.
            idle = next((key for key, each in self.by_key.items() if each.stream is None), None)
            if idle is None:
                raise ResourceLimitError(
                    f"{MAX_SESSIONS} senders are connected already; close some, or use another worker"
                )
            self.forget(idle)
        self.by_key[session.key] = session
        self._grant_share(session)

    def on_connected(self, session: Session) -> None:
        """End the lease of a sender that connects; if it has lost its share, grant it again."""
        session.connection_changed_at = asyncio.get_running_loop().time()
        if session.expiry_timer is not None:
            session.expiry_timer.cancel()
        if session.has_no_share:
            # Its queued messages count against its own share again.
            for task, messages, size_bytes in session.state.credit.unreleased_counts():
                self.shares.on_released(task, messages, size_bytes)
            session.has_no_share = False
            self._grant_share(session)

    def on_disconnected(self, session: Session) -> bool:
        """Start the lease of a disconnected sender; return False if the session was forgotten."""
        if self.by_key.get(session.key) is not session:
            return False
        session.state.credit.on_disconnected()
        # To the end, because add() forgets the first disconnected session.
        self.by_key[session.key] = self.by_key.pop(session.key)
        loop = asyncio.get_running_loop()
        session.connection_changed_at = loop.time()
        session.expiry_timer = loop.call_later(SHARE_LEASE_SECONDS, self._on_lease_expired, session)
        return True

    def _on_lease_expired(self, session: Session) -> None:
        self._revoke_share(session)
        # The session stays resumable without a share; see docs/design/credit.md (leases of senders).
        loop, delay = asyncio.get_running_loop(), self.settings.resume_seconds
        session.expiry_timer = loop.call_later(delay, self.forget, session.key)

    def forget(self, key: SessionKey) -> None:
        """End a sender's session, if any: after a goodbye, a restart, the timeout, or to admit another."""
        session = self.by_key.pop(key, None)
        if session is None:
            return
        if session.expiry_timer is not None:
            session.expiry_timer.cancel()
        session.end()
        if not session.has_no_share:
            self._revoke_share(session)
        if session.worker_number:  # a worker that starts over has another session immediately
            asyncio.get_running_loop().call_soon(self._report_if_disconnected, session.source)

    def _report_if_disconnected(self, worker_id: str) -> None:
        """Report that a worker is disconnected, unless it has another session."""
        if all(each.source != worker_id for each in self.by_key.values()):
            self._on_disconnect(worker_id)

    def _grant_share(self, session: Session) -> None:
        self._sharing_sessions[session.key] = session
        self.shares.set_session_count(len(self._sharing_sessions))

    def _revoke_share(self, session: Session) -> None:
        session.has_no_share = True
        del self._sharing_sessions[session.key]
        for task, messages, size_bytes in session.state.credit.unreleased_counts():
            self.shares.add_orphaned(task, messages, size_bytes)
        self.shares.set_session_count(len(self._sharing_sessions))
        # A sender that has used up its credit may get no other grant.
        for other in self._sharing_sessions.values():
            if other.state.credit.on_share_increase():
                other.wake()

    def release(self, flow_id: int, messages: int, size_bytes: int) -> None:
        """Give the other senders credit for released messages of a session without a share."""
        # Forwarded messages (flow_id < 0) have no share of the queue: their credit is at the entry worker.
        if flow_id >= 0 and self.shares.on_released(flow_id, messages, size_bytes):
            for session in self._sharing_sessions.values():
                if session.state.credit.on_space_freed(flow_id):
                    session.wake()
