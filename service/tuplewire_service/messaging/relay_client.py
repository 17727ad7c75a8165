"""Connections between workers: what the plug-in contract asks of them, and a sending end in that form."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from typing import Any

from tuplewire.batch import as_groups
from tuplewire.connection.loop import in_own_thread
from tuplewire.connection.sending_end import SendingEnd
from tuplewire.group import TaskGroup
from tuplewire.session.departure import Departure, OfEntry
from tuplewire.session.ledger import Settled
from tuplewire.session.pressure import OutboundPressure
from tuplewire_service.messaging.base import ClientStatistics, ConnectionStatus, IClientConnection


class IRelayConnection(IClientConnection):
    """What a worker needs of a connection to another: it passes on what others have handed to it.

    A transport whose connections are only IClientConnections serves programs, not workers.
    """

    @abstractmethod
    def forward(self, groups: Sequence[TaskGroup], token: Any, *, retain: bool = False) -> bool:
        """Do as try_send; the token comes back through on_settled and on_released, group by group.

        retain: keep the messages until the receiver is done with them, and send them again should it die.
        """

    @abstractmethod
    def attach(
        self,
        on_settled: Callable[[Sequence[Settled]], None],
        on_released: Callable[[Sequence[Settled]], None],
        assignment_version: Callable[[], int],
        draining: Callable[[], bool],
    ) -> None:
        """Say whom to tell; before the first forward. Called where the transport's I/O runs.

        on_settled: what the receiver has taken over, or what is dropped. on_released: what the receiver is
        done with, later, in order for each task; and what it will never be done with.
        assignment_version: asked for at every frame, for a receiver that lags behind. draining: asked for
        when connecting: whether the messages are the last of a worker that is about to go.
        """

    def tell_departures(
        self, departures: Callable[[], Sequence[Departure]], heard: Callable[[Sequence[Departure]], None]
    ) -> None:
        """Say whom to ask, when it says goodbye, for the workers that have ended in good order.

        heard: called with those that the receiver names, before it releases what it had passed on to them.
        All where the transport's I/O runs; before the first forward.
        """

    def unreleased(self) -> tuple[int, Mapping[OfEntry, int]]:
        """Return the receiver's incarnation, and of whom messages were passed on that it has not released.

        With each stands the last of their entry sequences; 0 stands for this worker as an entry worker.
        Called where the transport's I/O runs. Return (0, {}) if the transport cannot tell.
        """
        return 0, {}

    @property
    def receiver_has_none(self) -> bool:
        """True if the receiver has released all messages that were written to it.

        Called on the transport's I/O thread. Return False if the transport does not know.
        """
        return False

    def receivers_ended(self, incarnations: Container[int]) -> None:
        """Take what the receiver has as done with if it is one of these workers (their incarnations).

        They have ended in good order, and what they had is elsewhere. Called where the transport's I/O runs.
        """

    def when_lost(self, callback: Callable[[], object]) -> None:
        """Say whom to tell, where the transport's I/O runs, that the connection to the receiver has broken.

        A worker looks by itself each second, too: a transport need not do it.
        """

    def expect(self, worker_id: str) -> None:
        """Say which worker is meant; where another one answers, the messages wait and it is tried again.

        Called where the transport's I/O runs, before it connects. A transport whose address cannot be
        another worker's need not do it.
        """

    def watch(self, pressure: OutboundPressure) -> None:
        """Keep up to date what holds messages up, and how long frames take; before the first forward.

        For metrics. Called where the transport's I/O runs, and only there is `pressure` changed.
        """

    def blocked_tasks(self) -> Collection[int]:
        """Return the tasks with something that is not taken now; see IServerConnection.exhausted."""
        return ()

    @property
    def unkept_messages(self) -> int:
        """Messages that are not settled, and that neither the receiver nor their sender is known to have."""
        return self.statistics().ledger.pending

    @abstractmethod
    def watch_releases(self, tasks: Collection[int]) -> None:
        """Ask to hear of every release of these tasks' messages, and not only now and then."""

    @abstractmethod
    def all_released(self, task: int) -> bool:
        """Whether the receiver is done with every message to a task that was forwarded."""

    @abstractmethod
    def route_before(self, task: int, workers: Collection[int], entry_sequence: int) -> int | None:
        """Return by which route (see route_of) the last unreleased messages with a lower entry sequence went.

        workers: the numbers of entry workers whose messages count; 0: this one. entry_sequence: see
        TaskGroup. None: there are none. Messages that were forwarded before, and have come back, do not
        count themselves.
        """

    @abstractmethod
    def stop_writing(self) -> None:
        """Write no frame from now on: no other process gets what is taken back then. On the I/O thread."""

    @abstractmethod
    def take_back(self, timeout: float) -> list[tuple[TaskGroup, Any]]:
        """Close, and return what is not settled by then with its tokens, in order within each task.

        The connection's ledger then reads as if it had never accepted them. What may have arrived all the
        same is marked as redelivered. Nothing the second time, or when close() or abort() comes between.
        """

    async def take_back_async(self, timeout: float) -> list[tuple[TaskGroup, Any]]:
        """Do as take_back, where the transport's I/O runs; see close_async.

        A cancelled call has taken nothing back: the connection accepts nothing more, and is still to close.
        """
        return await in_own_thread(lambda: self.take_back(timeout))


class RelayClient(SendingEnd, IRelayConnection):
    """The verbs of a relay connection; how it is carried and closed is left to say."""

    _port: int
    _when_lost: Callable[[], object] = staticmethod(lambda: None)

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

    def forward(self, groups: Sequence[TaskGroup], token: Any, *, retain: bool = False) -> bool:
        return self.offer(groups, token, retain=retain)

    def unreleased(self) -> tuple[int, Mapping[OfEntry, int]]:
        with self._lock:
            self._take_in()
            return self._window.worker_incarnation, self._window.unreleased()

    @property
    def receiver_has_none(self) -> bool:
        with self._lock:
            self._take_in()
            return self._window.receiver_has_none

    def stop_writing(self) -> None:
        self.writes = False

    def receivers_ended(self, incarnations: Container[int]) -> None:
        with self._lock:
            if self._window.worker_incarnation in incarnations:
                self._window.receiver_ended()
                self._window.receiver_answers = True
        self.tell()

    def when_lost(self, callback: Callable[[], object]) -> None:
        self._when_lost = callback

    def lost(self, *, answers: bool = False) -> None:
        was_connected = self.connected
        super().lost(answers=answers)
        if was_connected:
            self._when_lost()

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
