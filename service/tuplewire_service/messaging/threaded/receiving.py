"""A sender's session at its receiver, and where its messages come from."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from tuplewire.config import AckMode, SessionSettings
from tuplewire.group import lane_of
from tuplewire.session.credit import CreditBook, Grant
from tuplewire.session.receive import AckUpdate, ReceiveSession
from tuplewire.session.send import Opened
from tuplewire.session.shares import QueueShares
from tuplewire_service.messaging.base import Intake, Origin, via_of

CLIENT_SOURCE = "client"


@dataclass(frozen=True, slots=True)
class Sending:
    """What a sender says of itself when it connects.

    sender_id: unique to the connection; may connect again. worker_id: empty for a program. draining: the
    messages are the last of a worker that is about to go. known: the incarnation of the receiver that the
    sender knows (0: none), acknowledged: the last frame that it knows to be accepted there.
    """

    sender_id: str
    worker_id: str
    ack_mode: AckMode
    draining: bool
    known: int
    acknowledged: int

    @property
    def intake(self) -> Intake:
        """The least intake that lets this sender in."""
        if not self.worker_id:
            return Intake.ALL
        return Intake.LEAVING_WORKERS if self.draining else Intake.WORKERS


class ReceivingSession:
    """Outlives the connections that carry it. Thread-safe."""

    def __init__(
        self,
        sending: Sending,
        shares: QueueShares,
        settings: SessionSettings,
        on_left: Callable[[int, int, int], None],
    ) -> None:
        """Begin one. on_left: told (task, messages, bytes) of what is done with after end()."""
        self.source = sending.worker_id or CLIENT_SOURCE
        self.sender_id = sending.sender_id
        self.incarnation = time.time_ns()
        """Tells this memory of the sender from any other."""
        self.intake = sending.intake
        self.wake: Callable[[], None] = lambda: None
        """See ThreadedServer.welcome."""
        self.lock = threading.RLock()
        self.delivering = False
        """Whether a frame is with the callback: until what it refuses is known, nothing may be told."""
        processed = sending.ack_mode is AckMode.PROCESSED
        self.eager = processed or bool(sending.worker_id)
        self.via = via_of(sending.worker_id, 0) if sending.worker_id else 0
        self._settings = settings
        self._on_left = on_left
        self._ended = False
        credit = CreditBook(shares, max_message_bytes=settings.max_message_bytes, eager=processed)
        self.state = ReceiveSession(sending.sender_id, self.incarnation, credit)

    def opened(self, acknowledged: int, wake: Callable[[], None]) -> Opened:
        """Return what to tell a sender that has connected, and knows so many frames to be accepted."""
        initial = self.state.credit.initial
        with self.lock:
            self.wake = wake
            return Opened(
                self.incarnation,
                Grant(0, initial.messages, initial.size_bytes, 0),
                self.state.resume(acknowledged),
                self._settings.max_message_bytes,
                self._settings.max_request_bytes,
            )

    def update(self) -> AckUpdate | None:
        """Return what the sender should hear now; None when it has heard everything."""
        with self.lock:
            return None if self.delivering else self.state.update()

    def follow(self, tasks: Collection[int]) -> None:
        """Tell every release of these tasks' messages from now on."""
        with self.lock:
            self.state.credit.follow(tasks)
        self.wake()

    def released(self, lane: int, messages: int, size_bytes: int) -> None:
        """Take account of messages that are done with."""
        with self.lock:
            worth_telling = self.state.credit.released(lane, messages, size_bytes)
            ended = self._ended
        if worth_telling:
            self.wake()
        if ended and lane >= 0:
            self._on_left(lane, messages, size_bytes)

    def end(self) -> list[tuple[int, int, int]]:
        """Note that the sender is gone; return (task, messages, bytes) of what it leaves in the queues."""
        with self.lock:
            self._ended = True
            return self.state.credit.outstanding()

    def freed(self, task: int) -> None:
        """Tell the sender that there is more room in a task's queue."""
        with self.lock:
            worth_telling = self.state.credit.freed(task)
        if worth_telling:
            self.wake()

    def origin(self, via: int) -> Origin:
        """Return the origin of what came by a worker; 0: of what came straight."""
        return _Origin(self, via)


class _Origin:
    __slots__ = ("_session", "_via", "eager", "source", "via")

    def __init__(self, session: ReceivingSession, came_by: int) -> None:
        self.source, self.via, self.eager = session.source, session.via, session.eager
        self._session = session
        self._via = came_by

    def release(self, task: int, messages: int, size_bytes: int) -> None:
        self._session.released(lane_of(task, self._via), messages, size_bytes)
