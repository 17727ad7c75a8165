"""A connection from one worker to another: a sender in the form of the plug-in contract."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

from tuplewire.connection.loop import EventLoopThread
from tuplewire.connection.sender import Identity, Sender
from tuplewire.connection.stream import Dial
from tuplewire.session.departure import OfEntry
from tuplewire.session.pressure import OutboundPressure
from tuplewire.settings.config import SessionSettings
from tuplewire.values.batch import as_groups
from tuplewire.values.group import TaskGroup
from tuplewire_service.messaging.base import ClientStatistics, ConnectionStatus, IClientConnection


class RelayClient(Sender, IClientConnection):
    """Sends to a worker: messages of this program, or messages that a worker forwards for others.

    Methods belong to the messaging loop, except those of the plug-in contract.
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
        """Close, and return the messages that are not settled by then, in order for each task, with tokens.

        The connection's ledger then reads as if it had never accepted them. Messages that may have arrived
        nevertheless are marked as redelivered. A second call returns nothing, nor does one after close().
        """
        return [] if self.ended else self.run(self.take_back_async(timeout))

    def close(self, timeout: float = 10.0) -> None:
        if not self.ended:
            self.run(self.close_async(timeout))

    def abort(self) -> None:
        if not self.ended:
            self.run(self.abort_async())

    # --- for a worker that forwards, on the loop -----------------------------------------------------

    def expect(self, worker_id: str) -> None:
        """Set the id of the worker to reach. While another worker answers, messages wait."""
        self.receiver_id = worker_id

    def watch(self, pressure: OutboundPressure) -> None:
        """Set where blocked time and frame times are counted; call it before the first forward."""
        self.pressure.tell(pressure)

    def forward(self, groups: Sequence[TaskGroup], token: Any, *, retain: bool = False) -> bool:
        """Accept groups as try_send does; the callbacks of attach() return the token with each group.

        retain: keep the messages until the receiver has released them, and send them again if it dies.
        """
        return self.offer(groups, token, retain=retain)

    def unreleased(self) -> tuple[int, Mapping[OfEntry, int]]:
        """Return the receiver's incarnation, and the entry workers with messages that it has not released.

        The value of each is its last entry sequence; the entry worker 0 is this worker.
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
        """Write no more frames, so that no other process gets messages that are taken back later."""
        self.writes = False

    def receivers_ended(self, incarnations: Container[int]) -> None:
        """Count all messages of the receiver as released if it is one of these workers (incarnations).

        These workers have drained, so their messages are at other workers.
        """
        with self._lock:
            if self._window.worker_incarnation in incarnations:
                self._window.receiver_ended()
                self._window.receiver_answers = True
        self.tell()

    def when_lost(self, callback: Callable[[], object]) -> None:
        """Set a function to call when the connection breaks."""
        self._when_lost = callback

    def lost(self, *, answers: bool = False) -> None:
        """See SendingEnd."""
        was_connected = self.connected
        super().lost(answers=answers)
        if was_connected:
            self._when_lost()
