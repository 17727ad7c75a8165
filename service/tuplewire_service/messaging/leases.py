"""How long the sessions of senders last at a bound server.

A connected sender has a share of every task's queue. One that is gone loses it after a moment, in which
it may reconnect. What it has left in the queues is taken off the others' shares until it is consumed. Its
session is remembered for longer, so that it may resume without a loss.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

from tuplewire.errors import ResourceLimitError
from tuplewire_service.messaging.receiving_end import ReceivingEnd, SessionKey
from tuplewire_service.messaging.transport_settings import TransportSettings

SHARE_SECONDS = 3.0
"""How long a sender without a connection keeps its share. A reconnect takes two seconds at most."""

_End = TypeVar("_End", bound=ReceivingEnd)


class Leases(Generic[_End]):
    """The sessions of one bound server. Belongs to the event loop."""

    def __init__(self, settings: TransportSettings, on_gone: Callable[[str], None]) -> None:
        """Start without any. on_gone: called with a worker's id when its last session is forgotten."""
        self.shares = settings.shares()
        self._settings = settings
        self._sessions: dict[SessionKey, _End] = {}
        self._sharing: dict[SessionKey, _End] = {}
        self._on_gone = on_gone

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def sharing(self) -> int:
        """How many sessions have a share of the queues."""
        return len(self._sharing)

    def get(self, key: SessionKey) -> _End | None:
        """Return a sender's session, if it is remembered."""
        return self._sessions.get(key)

    def add(self, session: _End) -> None:
        """Remember a new session; ResourceLimitError when as many are connected as may be remembered."""
        if len(self._sessions) >= self._settings.max_sessions:
            # A session moves to the end when it is disconnected: the first has been so for longest.
            idle = next((key for key, each in self._sessions.items() if not each.connected), None)
            if idle is None:
                raise ResourceLimitError(
                    f"{self._settings.max_sessions} senders are connected already; raise max_sessions"
                )
            self.forget(idle)
        self._sessions[session.key] = session
        self._share(session)

    def connected(self, session: _End) -> None:
        """Give a sender that is connected its share, again if it has lost it."""
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
        session.lapse = asyncio.get_running_loop().call_later(SHARE_SECONDS, lapse)
        return True

    def _lapse(self, session: _End) -> None:
        self._take_share(session, session.leave())
        forget = partial(self.forget, session.key)
        session.lapse = asyncio.get_running_loop().call_later(self._settings.resume_seconds, forget)

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
