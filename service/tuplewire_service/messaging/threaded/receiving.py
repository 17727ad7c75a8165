"""A sender's session at a receiver whose I/O runs in threads."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from tuplewire.config import AckMode, SessionSettings
from tuplewire.session.credit import Grant
from tuplewire.session.receive import AckUpdate, Opened
from tuplewire.session.shares import QueueShares
from tuplewire_service.messaging.base import Intake
from tuplewire_service.messaging.receiving_end import ReceivingEnd


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
        return Intake.of(worker=bool(self.worker_id), draining=self.draining)


class ReceivingSession(ReceivingEnd):
    """The receiving end for a transport whose I/O runs in threads."""

    def __init__(
        self,
        sending: Sending,
        shares: QueueShares,
        settings: SessionSettings,
        on_left: Callable[[int, int, int], None],
    ) -> None:
        """Begin one; see ReceivingEnd."""
        self.sender_id = sending.sender_id
        self.incarnation = time.time_ns()
        """Tells this memory of the sender from any other."""
        self.intake = sending.intake
        self.delivering = False
        """Whether a frame is with the callback: until what it refuses is known, nothing may be told."""
        self._settings = settings
        worker = (sending.worker_id, 0) if sending.worker_id else None
        super().__init__(
            sending.sender_id, self.incarnation, worker, sending.ack_mode, shares, settings, on_left
        )

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
