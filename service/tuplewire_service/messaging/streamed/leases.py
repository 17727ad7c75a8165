"""How long what a sender has at its receiver lasts: its share of the queues, and its session.

A connected sender has a share of every task's queue. One that is gone loses it after a moment, in which
it may reconnect. What it has left in the queues is taken off the others' shares until it is consumed. Its
session is remembered for longer, so that it may resume without a loss.
"""

from __future__ import annotations

import asyncio
from functools import partial

from tuplewire.errors import ResourceLimitError
from tuplewire_service.messaging.streamed.send_session import Session
from tuplewire_service.messaging.transport_settings import TransportSettings

SHARE_SECONDS = 3.0
"""How long a sender without a stream keeps its share. A reconnect takes two seconds at most."""


class Leases:
    """The sessions of one bound server. Belongs to the event loop."""

    def __init__(self, settings: TransportSettings) -> None:
        self.shares = settings.shares()
        self._settings = settings
        self._sessions: dict[str, Session] = {}
        self._sharing: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def sharing(self) -> int:
        """How many sessions have a share of the queues."""
        return len(self._sharing)

    @property
    def sources(self) -> set[str]:
        """Whose sessions they are, as sources of messages."""
        return {session.source for session in self._sessions.values()}

    def get(self, sender_id: str) -> Session | None:
        """Return a sender's session, if it is remembered."""
        return self._sessions.get(sender_id)

    def add(self, session: Session) -> None:
        """Remember a new session; ResourceLimitError when as many are connected as may be remembered."""
        if len(self._sessions) >= self._settings.max_sessions:
            # A session moves to the end when its stream ends: the first has been without one for longest.
            idle = next((key for key, each in self._sessions.items() if each.stream is None), None)
            if idle is None:
                raise ResourceLimitError(
                    f"{self._settings.max_sessions} senders are connected already; raise max_sessions"
                )
            self.forget(idle)
        self._sessions[session.state.sender_id] = session
        self._share(session)

    def connected(self, session: Session) -> None:
        """Give a sender with a stream its share, again if it has lost it."""
        if session.lapse is not None:
            session.lapse.cancel()
            session.lapse = None
        if session.away:
            for task, messages, size_bytes in session.come_back():
                self.shares.released(task, messages, size_bytes)
            self._share(session)

    def disconnected(self, session: Session) -> None:
        """Let the lease of a sender begin to run out: its stream has ended."""
        sender_id = session.state.sender_id
        if self._sessions.get(sender_id) is session:
            self._sessions[sender_id] = self._sessions.pop(sender_id)
            lapse = partial(self._lapse, session)
            session.lapse = asyncio.get_running_loop().call_later(SHARE_SECONDS, lapse)

    def _lapse(self, session: Session) -> None:
        self._take_share(session, session.leave())
        forget = partial(self.forget, session.state.sender_id)
        session.lapse = asyncio.get_running_loop().call_later(self._settings.resume_seconds, forget)

    def forget(self, sender_id: str) -> None:
        """End a sender's session, if there is one: it has said goodbye, starts over, or was gone too long."""
        session = self._sessions.pop(sender_id, None)
        if session is None:
            return
        if session.lapse is not None:
            session.lapse.cancel()
        shared = not session.away
        left = session.end()
        if shared:
            self._take_share(session, left)

    def _share(self, session: Session) -> None:
        self._sharing[session.state.sender_id] = session
        self.shares.shared_by(len(self._sharing))

    def _take_share(self, session: Session, left: list[tuple[int, int, int]]) -> None:
        del self._sharing[session.state.sender_id]
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
