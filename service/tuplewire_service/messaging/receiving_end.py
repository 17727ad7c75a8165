"""The receiving end of a session, but for the I/O, and how long the sessions of a bound server last.

A connected sender has a share of every task's queue. One that is gone loses it after a moment, in which
it may reconnect. What it has left in the queues is taken off the others' shares until it is consumed. Its
session is remembered for longer, so that it may resume without a loss.
"""

from __future__ import annotations

import asyncio
import threading
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

from tuplewire.config import AckMode
from tuplewire.errors import ResourceLimitError
from tuplewire.group import flow_of
from tuplewire.session.credit import CreditBook, Exhausted
from tuplewire.session.receive import ReceiveSession
from tuplewire_service.messaging.base import InboundSession, SessionSnapshot
from tuplewire_service.messaging.transport_settings import TransportSettings

CLIENT_SOURCE = "client"
SessionKey = tuple[str, str]
"""The owner, and the sender's id; see IAccess. Where nobody is asked who it is, the owner is empty."""
_OWNER = itemgetter(0)
_MOST_INBOUNDS = 256
"""So many are kept to be used again; entry workers come and go."""


def worker_number(worker_id: str, incarnation: int) -> int:
    """Return the number that stands for a worker in what is passed on for it, 1 to 2^32-1."""
    return zlib.crc32(f"{worker_id} {incarnation}".encode()) or 1


class ReceivingEnd(ABC):
    """A sender's session at its receiver; outlives the connections that carry it. Thread-safe."""

    def __init__(
        self,
        key: SessionKey,
        incarnation: int,
        worker: tuple[str, int] | None,
        ack_mode: AckMode,
        leases: Leases[Any],
        exhausted: Exhausted | None = None,
    ) -> None:
        """Begin one.

        worker: the sender's id and incarnation; None for a program. exhausted: see CreditBook.
        """
        self.key = key
        self.sender_id = key[1]
        self.source = worker[0] if worker else CLIENT_SOURCE
        self.worker_number = worker_number(*worker) if worker else 0
        self.ack_mode = ack_mode
        processed = ack_mode is AckMode.PROCESSED
        # A worker passes on to us what we pass on again only while a task moves, which it waits for.
        self.wants_releases = processed or worker is not None
        limit = leases.settings.session.max_message_bytes
        credit = CreditBook(
            leases.shares, max_message_bytes=limit, wants_releases=processed, exhausted=exhausted
        )
        self.state = ReceiveSession(key[1], incarnation, credit)
        self.lock = threading.RLock()
        self.away = False
        """Whether the sender has no share in the queues: it is gone, or has been for too long."""
        self.address = ""
        """Where the sender comes from, as the transport says it; empty: it is in this process."""
        self.since = 0.0
        """When it was connected, or its connection ended, by the event loop's clock."""
        self.lapse: asyncio.TimerHandle | None = None
        """Ends the share of a sender that is not connected, and then what is remembered of it."""
        self._on_left: Callable[[int, int, int], object] = leases.left_released
        """Called with (task, messages, bytes) at each release while the sender is away."""
        self._inbounds: dict[int, _Inbound] = {}
        self._ended_sessions = leases.ended

    @property
    @abstractmethod
    def connected(self) -> bool:
        """Whether there is a connection that carries it."""

    @abstractmethod
    def wake(self) -> None:
        """Have the sender told, as there may be an update."""

    def snapshot(self, now: float, window: int) -> SessionSnapshot:
        """Return what it is. now: by the event loop's clock. window: that of each sender with a share."""
        credit = self.state.credit
        return SessionSnapshot(
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
        with self.lock:
            self.state.credit.watch_releases(tasks)
        self.wake()

    def release(self, flow: int, messages: int, size_bytes: int) -> None:
        """Take account of messages that are done with; from any thread."""
        with self.lock:
            worth_telling = self.state.credit.released(flow, messages, size_bytes)
            away = self.away
        if worth_telling:
            self.wake()
        if away and flow >= 0:
            self._on_left(flow, messages, size_bytes)

    def leave(self) -> list[tuple[int, int, int]]:
        """Note that the sender is away; return (task, messages, bytes) of what it leaves in the queues."""
        with self.lock:
            if self.away:
                return []
            self.away = True
            return self.state.credit.outstanding()

    def come_back(self) -> list[tuple[int, int, int]]:
        """Note that the sender is here again; return (task, messages, bytes) of what it has in the queues."""
        with self.lock:
            if not self.away:
                return []
            self.away = False
            return self.state.credit.outstanding()

    def end(self) -> list[tuple[int, int, int]]:
        """Note that the sender will not resume; return what leave() does."""
        with self.lock:
            self.state.credit.end()
            known = self.source, self.worker_number, self.wants_releases
            ended = self._ended_sessions.setdefault(known, _EndedSession(*known, self._on_left))
            for inbound in self._inbounds.values():
                inbound.end = ended  # queued messages refer to it, and would keep this session alive
            self._inbounds.clear()  # they know the session: it would wait for Python to look for cycles
            return self.leave()

    def widened(self) -> None:
        """Tell the sender of larger shares, where it has used its own up: no release may come to tell it."""
        with self.lock:
            worth_telling = self.state.credit.widened()
        if worth_telling:
            self.wake()

    def freed(self, task: int) -> None:
        """Tell the sender that there is more room in a task's queue."""
        with self.lock:
            worth_telling = self.state.credit.freed(task)
        if worth_telling:
            self.wake()


@dataclass(frozen=True, slots=True, weakref_slot=True)
class _EndedSession:
    """Replaces ended sessions as long as their messages are queued. Equal sessions share one."""

    source: str
    worker_number: int
    wants_releases: bool
    on_left: Callable[[int, int, int], object]
    sender_id: str = ""

    def release(self, flow: int, messages: int, size_bytes: int) -> None:
        """See ReceivingEnd."""
        if flow >= 0:
            self.on_left(flow, messages, size_bytes)


class _Inbound:
    """Where a session's batches come from; those that came by another worker have an inbound of their own.

    Every queued message refers to one. So it is small, and drops its reference to a session that ends.
    """

    __slots__ = ("_came_by", "end")

    def __init__(self, end: ReceivingEnd, came_by: int) -> None:
        self.end: ReceivingEnd | _EndedSession = end
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

_End = TypeVar("_End", bound=ReceivingEnd)


class Leases(Generic[_End]):
    """The sessions of one bound server. Belongs to the event loop."""

    def __init__(self, settings: TransportSettings, on_gone: Callable[[str], None]) -> None:
        """Start without any. on_gone: called with a worker's id when its last session is forgotten."""
        self.shares = settings.shares()
        self.settings = settings
        self._sessions: dict[SessionKey, _End] = {}
        self._sharing: dict[SessionKey, _End] = {}
        self.ended: WeakValueDictionary[tuple[str, int, bool], _EndedSession] = WeakValueDictionary()
        """Replacements of ended sessions, by source, worker_number and wants_releases."""
        self._on_gone = on_gone

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

    def sessions(self) -> list[SessionSnapshot]:
        """Return every session as it is."""
        now, window = asyncio.get_running_loop().time(), self.shares.initial.messages
        return [each.snapshot(now, window) for each in self._sessions.values()]

    def get(self, key: SessionKey) -> _End | None:
        """Return a sender's session, if it is remembered."""
        return self._sessions.get(key)

    def add(self, session: _End) -> None:
        """Remember a new session; ResourceLimitError when as many are connected as may be remembered."""
        if len(self._sessions) >= self.settings.max_sessions:
            # A session moves to the end when it is disconnected: the first has been so for longest.
            idle = next((key for key, each in self._sessions.items() if not each.connected), None)
            if idle is None:
                raise ResourceLimitError(
                    f"{self.settings.max_sessions} senders are connected already; raise max_sessions"
                )
            self.forget(idle)
        self._sessions[session.key] = session
        self._share(session)

    def connected(self, session: _End) -> None:
        """Give a sender that is connected its share, again if it has lost it."""
        session.since = asyncio.get_running_loop().time()
        if session.lapse is not None:
            session.lapse.cancel()
            session.lapse = None
        if session.away:
            for task, messages, size_bytes in session.come_back():
                self.shares.released(task, messages, size_bytes)
            self._share(session)

    def disconnected(self, session: _End) -> bool:
        """Let a sender's lease begin to run out: its connection has ended; False when it is forgotten."""
        if self._sessions.get(session.key) is not session:
            return False
        self._sessions[session.key] = self._sessions.pop(session.key)
        lapse = partial(self._lapse, session)
        loop = asyncio.get_running_loop()
        session.since = loop.time()
        session.lapse = loop.call_later(SHARE_SECONDS, lapse)
        return True

    def _lapse(self, session: _End) -> None:
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

    def _share(self, session: _End) -> None:
        self._sharing[session.key] = session
        self.shares.shared_by(len(self._sharing))

    def _take_share(self, session: _End, left: list[tuple[int, int, int]]) -> None:
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
