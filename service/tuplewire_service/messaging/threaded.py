"""Both sides of a connection but for the I/O, for transports whose I/O runs in threads: local, and others'.

What is left to a transport: carry frames one way and acknowledgements the other, and connect again.
"""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tuplewire.config import AckMode, SessionSettings
from tuplewire.connection.loop import EventLoopThread, in_own_thread, messaging_loop
from tuplewire.errors import DrainingError
from tuplewire.group import TaskGroup
from tuplewire.session.credit import Grant
from tuplewire.session.ledger import DropReason
from tuplewire.session.receive import AckUpdate, Opened
from tuplewire_service.messaging.base import ConnectionStatus, Intake, ServerStatistics, SessionSnapshot
from tuplewire_service.messaging.receiving_end import Leases, ReceivingEnd
from tuplewire_service.messaging.reception import ReceptionServer
from tuplewire_service.messaging.relay_client import RelayClient
from tuplewire_service.messaging.transport_settings import TransportSettings


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


class ThreadedClient(RelayClient):
    """Keeps what is sent until it is settled. From any thread.

    A transport says how to wake and stop its I/O. It calls opened() when a receiver has answered its
    `sending`, next_watched() and next_frame() for what to write next, and update() for each acknowledgement.
    It calls take_load() and take_status() for what else the receiver says, and lost() when the connection has
    broken. From one thread at a time it calls tell().
    """

    def __init__(self, port: int, worker_id: str, settings: SessionSettings) -> None:
        super().__init__(f"port {port}", settings)
        self._port = port
        self._sender_id = uuid.uuid4().hex
        self._worker_id = worker_id

    # --- for the transport -----------------------------------------------------------------------

    @abstractmethod
    def _stop(self) -> None:
        """End the I/O, and tell() for the last time; called once, without a lock."""

    async def _stop_async(self) -> None:
        """Do the same on a worker's loop; in a thread of its own where nothing else is said."""
        await in_own_thread(self._stop)

    @property
    def sending(self) -> Sending:
        """What to say of itself when connecting."""
        return Sending(
            self._sender_id,
            self._worker_id,
            self._settings.ack_mode,
            self.draining(),
            self._window.receiver_incarnation,
            self._window.acknowledged,
        )

    # --- the end -------------------------------------------------------------------------------------

    def take_back(self, timeout: float) -> list[tuple[TaskGroup, Any]]:
        self.stop_accepting()
        self.wait_settled(timeout)
        if (left := self._take_back()) is None:
            return []
        self._stop()
        return left

    async def take_back_async(self, timeout: float) -> list[tuple[TaskGroup, Any]]:
        self.stop_accepting()
        await self.wait_settled_async(timeout)
        if (left := self._take_back()) is None:
            return []
        await self._stop_async()
        return left

    def close(self, timeout: float = 10.0) -> None:
        self.stop_accepting()
        self.wait_settled(timeout)
        if self.give_up(DropReason.CLOSED):
            self._stop()

    async def close_async(self, timeout: float = 10.0) -> None:
        self.stop_accepting()
        await self.wait_settled_async(timeout)
        if self.give_up(DropReason.CLOSED):
            await self._stop_async()


class ReceivingSession(ReceivingEnd):
    """The receiving end for a transport whose I/O runs in threads."""

    def __init__(self, sending: Sending, leases: Leases[ReceivingSession]) -> None:
        """Begin one; see ReceivingEnd."""
        self.connections = 0
        """A sender may connect again before it is noticed that it had lost its connection."""
        self.incarnation = time.time_ns()
        """Tells this memory of the sender from any other."""
        self.intake = sending.intake
        self.delivering = False
        """Whether a frame is with the callback: until what it refuses is known, nothing may be told."""
        self._wake: Callable[[], None] = lambda: None
        self._settings = leases.settings.session
        worker = (sending.worker_id, 0) if sending.worker_id else None
        super().__init__(("", sending.sender_id), self.incarnation, worker, sending.ack_mode, leases)
        # What is released is released from any thread; the leases belong to the loop.
        loop = asyncio.get_running_loop()
        self._on_left = lambda *left: loop.call_soon_threadsafe(leases.left_released, *left)

    @property
    def connected(self) -> bool:
        return self.connections > 0

    def wake(self) -> None:
        self._wake()

    def opened(self, acknowledged: int, wake: Callable[[], None]) -> Opened:
        """Return what to tell a sender that has connected, and knows so many frames to be accepted."""
        initial = self.state.credit.initial
        with self.lock:
            self._wake = wake
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


class ThreadedServer(ReceptionServer):
    """Keeps a session for each sender, and gives what they send to whoever takes it.

    A transport calls welcome() for each sender that connects, take() for each frame, goodbye() for one that
    will not come again, and lost() for each connection that has ended. It says how to tell senders of load
    and backpressure. From any thread. How long a sender is remembered, the messaging loop sees to.
    """

    def __init__(self, settings: TransportSettings) -> None:
        """Begin without a callback."""
        super().__init__()
        self._status = ConnectionStatus.READY
        self._thread: EventLoopThread = messaging_loop()
        self._leases: Leases[ReceivingSession] = Leases(settings, self._reception.forget)
        self._intake = Intake.ALL
        self._taking = threading.RLock()

    def takes(self, session: ReceivingSession) -> bool:
        """Whether frames of this sender are taken now; until then they wait with it."""
        return self._reception.open and session.intake <= self._intake

    def welcome(self, sending: Sending, wake: Callable[[], None]) -> tuple[ReceivingSession, Opened]:
        """Return the session of a sender that connects, as it was left or a new one, and what to tell it.

        wake: called from now on, from any thread, when there may be an update to tell; must not block. Raises
        RefusedError; ResourceLimitError where max_sessions senders are connected.
        """
        with self._taking:  # what is with the callback now may be this sender's
            if sending.intake > self._intake:
                raise DrainingError("the server is draining; connect again later, or to another one")
            if not sending.worker_id and (error := self._reception.callback.not_ready) is not None:
                raise error
            return self._thread.call(partial(self._open, sending, wake))

    def _open(self, sending: Sending, wake: Callable[[], None]) -> tuple[ReceivingSession, Opened]:
        leases = self._leases
        session = leases.get(("", sending.sender_id))
        if session is None or session.incarnation != sending.known:
            leases.forget(("", sending.sender_id))
            session = ReceivingSession(sending, leases)
            leases.add(session)
        session.connections += 1
        leases.connected(session)
        session.intake = sending.intake
        opened = session.opened(sending.acknowledged, wake)
        return session, replace(opened, assignment_version=self._reception.callback.assignment_version)

    def goodbye(self, session: ReceivingSession) -> None:
        """Forget a sender that will not come again."""
        self._thread.call(partial(self._forget, session))

    def _forget(self, session: ReceivingSession) -> None:
        if self._leases.get(session.key) is session:
            self._leases.forget(session.key)

    def lost(self, session: ReceivingSession) -> None:
        """Take note that a connection which was welcomed has ended: its sender may come again, or not."""
        self._thread.call(partial(self._lost, session))

    def _lost(self, session: ReceivingSession) -> None:
        session.connections -= 1
        if not session.connected:
            self._leases.disconnected(session)

    def take(
        self,
        session: ReceivingSession,
        sequence: int,
        groups: Sequence[TaskGroup],
        version: int = 0,
        closed: Sequence[int] = (),
    ) -> bool:
        """Take a frame in, once; False when nothing is taken from this sender now, and it keeps the frame.

        version: the assignment by which the sender routes. closed: those of the frame. Raises
        SequenceGapError, CreditExceededError, MalformedError: the connection must end.
        """
        with self._taking:
            if session.intake > self._intake:
                return False
            with session.lock:
                accepted = session.state.accept(sequence, groups, closed=closed)
                if accepted is None:
                    return True
                session.delivering = True
            self._reception.count(session.source, groups)
            self._reception.deliver(session, sequence, accepted, version)
            session.delivering = False
        session.wake()
        return True

    def stop_intake(self, intake: Intake = Intake.NOBODY) -> None:
        with self._taking:
            self._intake = intake

    def send_backpressure_status(
        self, worker_id: str, congested: Sequence[int], relieved: Sequence[int]
    ) -> None:
        del worker_id
        self._check_open()
        self._tell_status(congested, relieved)

    @abstractmethod
    def _tell_status(self, congested: Sequence[int], relieved: Sequence[int]) -> None:
        """Tell every sender that is connected."""

    def statistics(self) -> ServerStatistics:
        return self._counts(self._leases)

    def sessions(self) -> Sequence[SessionSnapshot]:
        return self._leases.sessions()

    def close(self, timeout: float = 10.0) -> None:
        if self._status is not ConnectionStatus.CLOSED:
            self._status = ConnectionStatus.CLOSED
            self.stop_intake()
            self._end(timeout)
            self._reception.close()

    @abstractmethod
    def _end(self, timeout: float) -> None:
        """End the I/O: free the port, let senders hear what was taken, for at most so many seconds."""
