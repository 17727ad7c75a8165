"""The sessions of senders at the Send service, the streams that carry them, and how long they last.

A connected sender has a share of every task's queue. One that is gone loses it after a moment, in which
it may reconnect. What it has left in the queues is taken off the others' shares until it is consumed. Its
session is remembered for longer, so that it may resume without a loss.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from tuplewire.config import AckMode, SessionSettings
from tuplewire.connection.stream import Gathering
from tuplewire.errors import ResourceLimitError, TuplewireError
from tuplewire.session.credit import Exhausted
from tuplewire.session.shares import QueueShares
from tuplewire.wire import messaging_pb2 as pb
from tuplewire_service.messaging.base import Intake
from tuplewire_service.messaging.receiving_end import ReceivingEnd
from tuplewire_service.messaging.streamed.streamed_stream import EVERYTHING, IAccess, ServerStream
from tuplewire_service.messaging.transport_settings import TransportSettings

SHARE_SECONDS = 3.0
"""How long a sender without a stream keeps its share. A reconnect takes two seconds at most."""

SessionKey = tuple[str, str]
"""The owner, and the sender's id; see IAccess."""


class Session(ReceivingEnd):
    """A sender's session and the stream that carries it now. Belongs to the loop, but for release()."""

    def __init__(
        self,
        hello: pb.Hello,
        owner: str,
        epoch: int,
        shares: QueueShares,
        settings: SessionSettings,
        on_left: Callable[[int, int, int], None],
        exhausted: Exhausted,
    ) -> None:
        """Begin one; see ReceivingEnd. owner: see IAccess."""
        self.key = owner, hello.sender_id
        self.epoch = epoch
        """Tells this session's memory from any other of the same sender, here or elsewhere."""
        # A worker's id, then its start and the number of the connection among its own.
        worker_id = hello.sender_id.rpartition("/")[0] or hello.sender_id
        self.worker = hello.kind == pb.PEER_KIND_WORKER
        super().__init__(
            hello.sender_id,
            hello.incarnation,
            (worker_id, hello.incarnation) if self.worker else None,
            AckMode.PROCESSED if hello.ack_mode == pb.ACK_MODE_PROCESSED else AckMode.QUEUED,
            shares,
            settings,
            on_left,
            exhausted,
        )
        self.wake = self._wake_stream
        self.stream: SendStream | None = None
        self.lapse: asyncio.TimerHandle | None = None
        """Ends the share of a sender without a stream, and then what is remembered of it."""
        self.access: IAccess = EVERYTHING
        """What whoever carries it now may do."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def _wake_stream(self) -> None:
        if self.stream is not None:
            self.stream.wake.set()

    def release(self, flow: int, messages: int, size_bytes: int) -> None:
        """See ReceivingEnd; done on the loop, where the queues' shares are."""
        if threading.get_ident() == self._thread:
            super().release(flow, messages, size_bytes)
        else:
            self._loop.call_soon_threadsafe(self.release, flow, messages, size_bytes)


class SendStream:
    """One stream of a session."""

    def __init__(self, wire: ServerStream) -> None:
        self.wire = wire
        self.wake = asyncio.Event()
        self.notices: dict[tuple[str, int], pb.SendResponse] = {}
        """What to write besides acknowledgements, the latest of each kind and part: a peer may never read."""
        self.frames = Gathering(self.wake, asyncio.get_running_loop())
        """Those that were taken and are not acknowledged, unless the sender asks before."""
        self.task = asyncio.current_task()
        self.waiting: asyncio.Task[Any] | None = None
        """The task while it may be interrupted: a write must not be, see finish_writing."""
        self.ending: TuplewireError | None = None
        self.intake = Intake.ALL
        """The least intake that this stream belongs to."""
        self.dismissed = False
        """Whether the sender was told of a drain."""
        self.finished = asyncio.Event()
        """Set once nothing more is read."""
        self.stopped = False
        """Whether that is so before the sender has ended its side."""

    def notify(self, notice: pb.SendResponse, part: int = 0) -> None:
        """Write this soon, in place of an earlier one of its kind, or part."""
        key = notice.WhichOneof("kind") or "", part
        if key[0] == "backpressure" and key in self.notices:
            _merge(self.notices[key].backpressure, notice.backpressure)
        else:
            self.notices[key] = notice
        self.wake.set()

    def stop_reading(self) -> None:
        """Take nothing more from a sender that does not end its side; it still hears what there is to say."""
        self.stopped = True
        if self.waiting is not None:
            self.waiting.cancel()

    async def until_stopped(self, reading: Coroutine[Any, Any, None]) -> None:
        """Read to the end, or until stop_reading."""
        try:
            await reading
        except asyncio.CancelledError:
            if not self.stopped or self.ending is not None:
                raise
            if self.waiting is not None:
                self.waiting.uncancel()

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


class Leases:
    """The sessions of one bound server. Belongs to the event loop."""

    def __init__(self, settings: TransportSettings, on_gone: Callable[[str], None]) -> None:
        """Start without any. on_gone: called with a worker's id when its last session is forgotten."""
        self.shares = settings.shares()
        self._settings = settings
        self._sessions: dict[SessionKey, Session] = {}
        self._sharing: dict[SessionKey, Session] = {}
        self._on_gone = on_gone

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def sharing(self) -> int:
        """How many sessions have a share of the queues."""
        return len(self._sharing)

    def get(self, key: SessionKey) -> Session | None:
        """Return a sender's session, if it is remembered."""
        return self._sessions.get(key)

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
        self._sessions[session.key] = session
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

    def disconnected(self, session: Session) -> bool:
        """Let the lease of a sender begin to run out: its stream has ended; False when it is forgotten."""
        if self._sessions.get(session.key) is not session:
            return False
        self._sessions[session.key] = self._sessions.pop(session.key)
        lapse = partial(self._lapse, session)
        session.lapse = asyncio.get_running_loop().call_later(SHARE_SECONDS, lapse)
        return True

    def _lapse(self, session: Session) -> None:
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
        if session.worker:  # one that starts over has another session at once
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
