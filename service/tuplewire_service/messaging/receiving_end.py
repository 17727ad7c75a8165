"""The receiving end of a session, but for the I/O, and how long the sessions of a bound server last.

A connected sender has a share of every task's queue. One that is gone loses it after a moment, in which
it may reconnect. What it has left in the queues is taken off the others' shares until it is consumed. Its
session is remembered for longer, so that it may resume without a loss.
"""

from __future__ import annotations

import asyncio
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from weakref import WeakValueDictionary

from tuplewire.errors import ResourceLimitError
from tuplewire.session.credit import CreditBook, Exhausted
from tuplewire.session.receive import ReceiveSession
from tuplewire.settings.config import AckMode
from tuplewire.values.group import flow_of
from tuplewire.wire import messaging_pb2 as pb
from tuplewire.wire.control_pb2 import SessionStatus
from tuplewire_service.messaging.base import InboundSession
from tuplewire_service.messaging.sender_sessions import SendStream
from tuplewire_service.messaging.server_stream import EVERYTHING, IAccess
from tuplewire_service.messaging.transport_settings import TransportSettings

CLIENT_SOURCE = "client"
SessionKey = tuple[str, str]
"""The owner, and the sender's id; see IAccess. Where nobody is asked who it is, the owner is empty."""
MAX_SESSIONS = 10_000
"""Senders that one server remembers at the same time."""
_OWNER = itemgetter(0)
_MOST_INBOUNDS = 256
"""So many are kept to be used again; entry workers come and go."""


def worker_number(worker_id: str, incarnation: int) -> int:
    """Return the number that stands for a worker in what is passed on for it, 1 to 2^32-1."""
    return zlib.crc32(f"{worker_id} {incarnation}".encode()) or 1


class Session:
    """A sender's session at its receiver, and the stream that carries it now; outlives its streams.

    Belongs to the event loop, but for release().
    """

    def __init__(self, hello: pb.Hello, owner: str, epoch: int, leases: Leases, exhausted: Exhausted) -> None:
        """Begin one. owner: see IAccess. exhausted: see CreditBook."""
        self.epoch = epoch
        """Differs for each session of the same sender, here or at another worker."""
        self.key = owner, hello.sender_id
        self.sender_id = hello.sender_id
        worker = hello.kind == pb.PEER_KIND_WORKER
        # A worker's id, then its start and the number of the connection among its own.
        worker_id = hello.sender_id.rpartition("/")[0] or hello.sender_id
        self.source = worker_id if worker else CLIENT_SOURCE
        self.worker_number = worker_number(worker_id, hello.incarnation) if worker else 0
        processed = hello.ack_mode == pb.ACK_MODE_PROCESSED
        self.ack_mode = AckMode.PROCESSED if processed else AckMode.QUEUED
        # A worker passes on to us what we pass on again only while a task moves, which it waits for.
        self.wants_releases = processed or worker
        limit = leases.settings.session.max_message_bytes
        credit = CreditBook(
            leases.shares, max_message_bytes=limit, wants_releases=processed, exhausted=exhausted
        )
        self.state = ReceiveSession(hello.sender_id, hello.incarnation, credit)
        self.away = False
        """Whether the sender has no share in the queues: it is gone, or has been for too long."""
        self.address = ""
        """Where the sender comes from, as the transport says it; empty: it is in this process."""
        self.since = 0.0
        """When it was connected, or its connection ended, by the event loop's clock."""
        self.lapse: asyncio.TimerHandle | None = None
        """Ends the share of a sender that is not connected, and then what is remembered of it."""
        self.stream: SendStream | None = None
        self.departed_before = 0
        """How many workers had ended when it began."""
        self.access: IAccess = EVERYTHING
        """What whoever carries it now may do."""
        self._inbounds: dict[int, _Inbound] = {}
        self._leases = leases

    @property
    def connected(self) -> bool:
        """Whether there is a stream that carries it."""
        return self.stream is not None

    def wake(self) -> None:
        """Have the sender told, as there may be an update."""
        if self.stream is not None:
            self.stream.wake.set()

    def status(self, now: float, window: int) -> SessionStatus:
        """Return what it is. now: by the event loop's clock. window: that of each sender with a share."""
        credit = self.state.credit
        return SessionStatus(
            sender_id=self.sender_id,
            who=self.key[0],
            worker_id=self.source if self.worker_number else "",
            address=self.address,
            connected=self.connected,
            seconds=now - self.since,
            messages=credit.received_messages,
            bytes=credit.received_bytes,
            window_messages=0 if self.away else window,
            outstanding_messages=credit.received_messages - credit.released_messages,
            outstanding_bytes=credit.received_bytes - credit.released_bytes,
            exhausted_tasks=credit.exhausted_tasks,
        )

    def inbound(self, forwarded: int) -> InboundSession:
        """Return the inbound of what came by a worker; 0: of what came straight."""
        inbound = self._inbounds.get(forwarded)
        if inbound is None:
            if len(self._inbounds) >= _MOST_INBOUNDS:
                self._inbounds.clear()
            inbound = self._inbounds[forwarded] = _Inbound(self, forwarded)
        return inbound

    def watch_releases(self, tasks: Collection[int]) -> None:
        """Tell every release of these tasks' messages from now on."""
        self.state.credit.watch_releases(tasks)
        self.wake()

    def release(self, flow: int, messages: int, size_bytes: int) -> None:
        """Take account of messages that are done with; from any thread."""
        if self._leases.outside(self.release, flow, messages, size_bytes):
            return
        if self.state.credit.released(flow, messages, size_bytes):
            self.wake()
        if self.away and flow >= 0:
            self._leases.left_released(flow, messages, size_bytes)

    def leave(self) -> list[tuple[int, int, int]]:
        """Note that the sender is away; return (task, messages, bytes) of what it leaves in the queues."""
        if self.away:
            return []
        self.away = True
        return self.state.credit.outstanding()

    def come_back(self) -> list[tuple[int, int, int]]:
        """Note that the sender is here again; return (task, messages, bytes) of what it has in the queues."""
        if not self.away:
            return []
        self.away = False
        return self.state.credit.outstanding()

    def end(self) -> list[tuple[int, int, int]]:
        """Note that the sender will not resume; return what leave() does."""
        self.state.credit.end()
        known = self.source, self.worker_number, self.wants_releases
        ended = self._leases.ended.setdefault(known, _EndedSession(*known, self._leases))
        for inbound in self._inbounds.values():
            inbound.end = ended  # queued messages refer to it, and would keep this session alive
        self._inbounds.clear()  # they know the session: it would wait for Python to look for cycles
        return self.leave()

    def widened(self) -> None:
        """Tell the sender of larger shares, where it has used its own up: no release may come to tell it."""
        if self.state.credit.widened():
            self.wake()

    def freed(self, task: int) -> None:
        """Tell the sender that there is more room in a task's queue."""
        if self.state.credit.freed(task):
            self.wake()


@dataclass(frozen=True, slots=True, weakref_slot=True)
class _EndedSession:
    """Replaces ended sessions as long as their messages are queued. Equal sessions share one."""

    source: str
    worker_number: int
    wants_releases: bool
    leases: Leases
    sender_id: str = ""

    def release(self, flow: int, messages: int, size_bytes: int) -> None:
        """See Session; from any thread."""
        if flow >= 0 and not self.leases.outside(self.release, flow, messages, size_bytes):
            self.leases.left_released(flow, messages, size_bytes)


class _Inbound:
    """Where a session's batches come from; those that came by another worker have an inbound of their own.

    Every queued message refers to one. So it is small, and drops its reference to a session that ends.
    """

    __slots__ = ("_came_by", "end")

    def __init__(self, end: Session, came_by: int) -> None:
        self.end: Session | _EndedSession = end
        self._came_by = came_by

    @property
    def source(self) -> str:
        return self.end.source

    @property
    def sender_id(self) -> str:
        return self.end.sender_id

    @property
    def worker_number(self) -> int:
        return self.end.worker_number

    @property
    def wants_releases(self) -> bool:
        return self.end.wants_releases

    def release(self, task: int, messages: int, size_bytes: int) -> None:
        self.end.release(flow_of(task, self._came_by), messages, size_bytes)


SHARE_SECONDS = 3.0
"""How long a sender without a connection keeps its share. A reconnect takes two seconds at most."""


class Leases:
    """The sessions of one bound server. Belongs to the event loop."""

    def __init__(self, settings: TransportSettings, on_gone: Callable[[str], None]) -> None:
        """Start without any. on_gone: called with a worker's id when its last session is forgotten."""
        self.shares = settings.shares()
        self.settings = settings
        self._sessions: dict[SessionKey, Session] = {}
        self._sharing: dict[SessionKey, Session] = {}
        self.ended: WeakValueDictionary[tuple[str, int, bool], _EndedSession] = WeakValueDictionary()
        """Replacements of ended sessions, by source, worker_number and wants_releases."""
        self._on_gone = on_gone
        self.loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0

    def outside(self, release: Callable[..., object], *about: int) -> bool:
        """Call the release on the event loop if this is another thread; return whether it is."""
        if self.loop is None or threading.get_ident() == self._thread:
            return False
        self.loop.call_soon_threadsafe(release, *about)
        return True

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def sharing(self) -> int:
        """How many sessions have a share of the queues."""
        return len(self._sharing)

    def identities(self) -> dict[str, tuple[int, int]]:
        """Return how many sessions of each identity have a share of the queues, and how many have none."""
        sharing = Counter(map(_OWNER, self._sharing))
        known = Counter(map(_OWNER, self._sessions))
        return {who: (sharing[who], count - sharing[who]) for who, count in known.items() if who}

    def sessions(self) -> list[SessionStatus]:
        """Return every session as it is."""
        now, window = asyncio.get_running_loop().time(), self.shares.initial.messages
        return [each.status(now, window) for each in self._sessions.values()]

    def get(self, key: SessionKey) -> Session | None:
        """Return a sender's session, if it is remembered."""
        return self._sessions.get(key)

    def add(self, session: Session) -> None:
        """Remember a new session; ResourceLimitError when as many are connected as may be remembered."""
        if len(self._sessions) >= MAX_SESSIONS:
            # A session moves to the end when it is disconnected: the first has been so for longest.
            idle = next((key for key, each in self._sessions.items() if not each.connected), None)
            if idle is None:
                raise ResourceLimitError(
                    f"{MAX_SESSIONS} senders are connected already; close some, or use another worker"
                )
            self.forget(idle)
        self._sessions[session.key] = session
        self.loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._share(session)

    def connected(self, session: Session) -> None:
        """Give a sender that is connected its share, again if it has lost it."""
        session.since = asyncio.get_running_loop().time()
        if session.lapse is not None:
            session.lapse.cancel()
            session.lapse = None
        if session.away:
            for task, messages, size_bytes in session.come_back():
                self.shares.released(task, messages, size_bytes)
            self._share(session)

    def disconnected(self, session: Session) -> bool:
        """Let a sender's lease begin to run out: its connection has ended; False when it is forgotten."""
        if self._sessions.get(session.key) is not session:
            return False
        self._sessions[session.key] = self._sessions.pop(session.key)
        lapse = partial(self._lapse, session)
        loop = asyncio.get_running_loop()
        session.since = loop.time()
        session.lapse = loop.call_later(SHARE_SECONDS, lapse)
        return True

    def _lapse(self, session: Session) -> None:
        self._take_share(session, session.leave())
        forget = partial(self.forget, session.key)
        session.lapse = asyncio.get_running_loop().call_later(self.settings.resume_seconds, forget)

    def forget(self, key: SessionKey) -> None:
        """End a sender's session, if there is one: it has said goodbye, starts over, or was gone too long."""
        session = self._sessions.pop(key, None)
        if session is None:
            return
        if session.lapse is not None:
            session.lapse.cancel()
        shared = not session.away
        left = session.end()
        if shared:
            self._take_share(session, left)
        if session.worker_number:  # one that starts over has another session at once
            asyncio.get_running_loop().call_soon(self._miss, session.source)

    def _miss(self, worker_id: str) -> None:
        """Say that a worker is gone, unless it has another session."""
        if all(each.source != worker_id for each in self._sessions.values()):
            self._on_gone(worker_id)

    def _share(self, session: Session) -> None:
        self._sharing[session.key] = session
        self.shares.shared_by(len(self._sharing))

    def _take_share(self, session: Session, left: list[tuple[int, int, int]]) -> None:
        del self._sharing[session.key]
        for task, messages, size_bytes in left:
            self.shares.leave(task, messages, size_bytes)
        self.shares.shared_by(len(self._sharing))
        for other in self._sharing.values():
            other.widened()

    def left_released(self, task: int, messages: int, size_bytes: int) -> None:
        """Give the others room for what a sender that is away had left in a task's queue."""
        if self.shares.released(task, messages, size_bytes):
            for session in self._sharing.values():
                session.freed(task)
