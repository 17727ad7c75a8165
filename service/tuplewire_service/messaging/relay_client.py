"""A connection from one worker to another: a sender in the form of the plug-in contract."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

from tuplewire.batch import as_groups
from tuplewire.config import SessionSettings
from tuplewire.connection.loop import EventLoopThread
from tuplewire.connection.sender import Identity, Sender
from tuplewire.connection.stream import Dial
from tuplewire.group import TaskGroup
from tuplewire.session.departure import OfEntry
from tuplewire.session.pressure import OutboundPressure
from tuplewire_service.messaging.base import ClientStatistics, ConnectionStatus, IClientConnection


class RelayClient(Sender, IClientConnection):
    """Sends to a worker, and passes on to it what others have handed to this one.

    What a worker needs for that is Sender's and is added here; it runs on the messaging loop, unless a method
    says otherwise.
    """

    def __init__(
        self, thread: EventLoopThread, address: str, identity: Identity, settings: SessionSettings, dial: Dial
    ) -> None:
        """Begin to connect; see Sender."""
        super().__init__(address, identity, settings, thread.loop, dial)
        self._port = int(address.rpartition(":")[2])
        self._when_lost: Callable[[], object] = lambda: None
        thread.begin(self)

    # --- the plug-in contract, from any thread -------------------------------------------------------

    @property
    def port(self) -> int:
        return self._port

    @property
    def status(self) -> ConnectionStatus:
        if self.ended or self.failed is not None:
            return ConnectionStatus.CLOSED
        return ConnectionStatus.READY if self.connected else ConnectionStatus.CONNECTING

    def send(self, messages: Any, payload: bytes | None = None, /, *, timeout: float | None = None) -> None:
        if not self.send_one(messages, payload):
            super().send(as_groups(messages, payload), timeout=timeout)

    def try_send(self, messages: Any, payload: bytes | None = None, /) -> bool:
        return self.send_one(messages, payload) or self.offer(as_groups(messages, payload))

    def statistics(self) -> ClientStatistics:
        counts = self.counts
        return ClientStatistics(
            self.ledger(),
            counts.messages,
            counts.frames,
            counts.bytes,
            max(0, counts.connections - 1),
            self.receiver_assignment_version,
            counts.perhaps_lost,
        )

    def take_back(self, timeout: float) -> list[tuple[TaskGroup, Any]]:
        """Close, and return what is not settled by then with its tokens, in order within each task.

        The connection's ledger then reads as if it had never accepted them. What may have arrived all the
        same is marked as redelivered. Nothing the second time, or when close() or abort() comes between.
        """
        return [] if self.ended else self.run(self.take_back_async(timeout))

    def close(self, timeout: float = 10.0) -> None:
        if not self.ended:
            self.run(self.close_async(timeout))

    def abort(self) -> None:
        if not self.ended:
            self.run(self.abort_async())

    # --- for a worker that passes on, on the loop ----------------------------------------------------

    def expect(self, worker_id: str) -> None:
        """Say which worker is meant; where another one answers, the messages wait and it is tried again."""
        self.receiver_id = worker_id

    def watch(self, pressure: OutboundPressure) -> None:
        """Keep up to date what holds messages up, and how long frames take; before the first forward."""
        self.pressure.tell(pressure)

    def forward(self, groups: Sequence[TaskGroup], token: Any, *, retain: bool = False) -> bool:
        """Do as try_send; the token comes back through what attach() names, group by group.

        retain: keep the messages until the receiver is done with them, and send them again should it die.
        """
        return self.offer(groups, token, retain=retain)

    def unreleased(self) -> tuple[int, Mapping[OfEntry, int]]:
        """Return the receiver's incarnation, and of whom messages were passed on that it has not released.

        With each stands the last of their entry sequences; 0 stands for this worker as an entry worker.
        """
        with self._lock:
            self._take_in()
            return self._window.worker_incarnation, self._window.unreleased()

    @property
    def receiver_has_none(self) -> bool:
        """True if the receiver has released all messages that were written to it."""
        with self._lock:
            self._take_in()
            return self._window.receiver_has_none

    def stop_writing(self) -> None:
        """Write no frame from now on: no other process gets what is taken back then."""
        self.writes = False

    def receivers_ended(self, incarnations: Container[int]) -> None:
        """Take what the receiver has as done with if it is one of these workers (their incarnations).

        They have ended in good order, and what they had is elsewhere.
        """
        with self._lock:
            if self._window.worker_incarnation in incarnations:
                self._window.receiver_ended()
                self._window.receiver_answers = True
        self.tell()

    def when_lost(self, callback: Callable[[], object]) -> None:
        """Say whom to tell that the connection to the receiver has broken."""
        self._when_lost = callback

    def lost(self, *, answers: bool = False) -> None:
        """See SendingEnd."""
        was_connected = self.connected
        super().lost(answers=answers)
        if was_connected:
            self._when_lost()
