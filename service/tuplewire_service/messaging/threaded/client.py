"""The connecting side of a transport, but for its I/O."""

from __future__ import annotations

import threading
import time
import uuid
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from tuplewire.config import SessionSettings
from tuplewire.errors import BufferFullError, ClosedError
from tuplewire.group import TaskGroup
from tuplewire.message import as_groups
from tuplewire.session.frame import OutFrame
from tuplewire.session.ledger import DropReason, Settled
from tuplewire.session.loads import ReportedLoads
from tuplewire.session.receive import AckUpdate
from tuplewire.session.send import Opened, SendWindow
from tuplewire_service.messaging.base import ClientStatistics, ConnectionStatus, IRelayConnection
from tuplewire_service.messaging.threaded.receiving import Sending


class ThreadedClient(IRelayConnection):
    """Keeps what is sent until it is settled. From any thread.

    A transport calls opened() when a receiver has answered its `sending`, next_frame() for what to write
    next, update() for each acknowledgement, lost() when the connection has broken, and, from one thread at a
    time, tell().
    """

    def __init__(self, port: int, worker_id: str, settings: SessionSettings) -> None:
        self._sender_id = uuid.uuid4().hex
        self._worker_id = worker_id
        self._port = port
        self._settings = settings
        self._window = SendWindow(settings)
        self._changed = threading.Condition()
        self._status = ConnectionStatus.CONNECTING
        self._closing = False
        self._loads = ReportedLoads(settings.load_expires_seconds)
        self._congested: frozenset[int] = frozenset()
        self._sent_messages = self._sent_batches = self._sent_bytes = self._connections = 0
        self._settled: list[Settled] = []
        self._followed: set[int] = set()
        self._follow_told = True
        self._callbacks: tuple[Callable[[Sequence[Settled]], None], ...] = ()
        self._version: Callable[[], int] = lambda: 0
        self._draining: Callable[[], bool] = lambda: False

    # --- for the transport -----------------------------------------------------------------------

    @abstractmethod
    def _wake(self) -> None:
        """Carry and tell what there is, or see that it is done; called without a lock."""

    @abstractmethod
    def _stop(self) -> None:
        """End the I/O, and tell() for the last time; called once, without a lock."""

    @property
    def sending(self) -> Sending:
        """What to say of itself when connecting."""
        window = self._window
        return Sending(
            self._sender_id,
            self._worker_id,
            self._settings.ack_mode,
            self._draining(),
            window.receiver_incarnation,
            window.acknowledged,
        )

    def opened(self, opened: Opened, loads: dict[int, float]) -> None:
        """Go on over a new connection."""
        with self._changed:
            if self._status is ConnectionStatus.CLOSED:
                return
            self._settled += self._window.opened(opened)
            self._connections += 1
            self._loads.take(loads, time.monotonic())
            self._follow_told = not self._followed
            self._status = ConnectionStatus.READY
            self._changed.notify_all()

    def lost(self) -> None:
        """Take account of a connection that has broken, or whose receiver is gone."""
        with self._changed:
            if self._status is ConnectionStatus.READY:
                self._status = ConnectionStatus.CONNECTING
            self._changed.notify_all()

    def next_frame(self) -> OutFrame | None:
        """Return what to write next; None when there is nothing, or no connection."""
        with self._changed:
            frame = self._window.next_frame() if self._status is ConnectionStatus.READY else None
            if frame is not None:
                self._sent_messages += frame.messages
                self._sent_batches += 1
                self._sent_bytes += frame.size_bytes
            return frame

    def next_follow(self) -> Collection[int]:
        """Return the tasks whose releases the receiver is asked to tell; none when it knows."""
        with self._changed:
            told, self._follow_told = self._follow_told, True
            return () if told else tuple(self._followed)

    def update(self, update: AckUpdate) -> None:
        """Take an acknowledgement in."""
        with self._changed:
            if self._status is not ConnectionStatus.CLOSED:
                self._settled += self._window.update(update)
                self._changed.notify_all()

    @property
    def waiting(self) -> bool:
        """Whether there may be something to write or to tell."""
        return bool(self._window.messages or self._callbacks)

    def tell(self) -> None:
        """Tell a relay what has settled, and what the receiver is done with."""
        with self._changed:
            told = self._settled + self._window.overflowed(), self._window.released()
            self._settled = []
        for callback, settled in zip(self._callbacks, told, strict=False):
            if settled:
                callback(settled)

    def take_load(self, loads: dict[int, float]) -> None:
        """Take account of what the receiver says."""
        self._loads.take(loads, time.monotonic())

    def take_status(self, congested: Sequence[int], relieved: Sequence[int]) -> None:
        """Take account of the receiver's backpressure status."""
        self._congested = self._congested.union(congested).difference(relieved)

    # --- for whoever sends -------------------------------------------------------------------------

    @property
    def port(self) -> int:
        """See IConnection."""
        return self._port

    @property
    def status(self) -> ConnectionStatus:
        """See IConnection."""
        return self._status

    @property
    def congested(self) -> frozenset[int]:
        """See IClientConnection."""
        return self._congested

    def send(self, messages: Any, payload: bytes | None = None, /, *, timeout: float | None = None) -> None:
        """See IClientConnection."""
        groups = as_groups(messages, payload)
        with self._changed:
            if not self._changed.wait_for(lambda: self._offer(groups), self._settings.patience(timeout)):
                window = self._window
                raise BufferFullError(
                    f"no room: {window.messages} messages ({window.size_bytes} bytes) are pending, the "
                    "receiver is slow or gone; wait longer, or raise max_pending_messages and _bytes"
                )
        self._wake()

    def try_send(self, messages: Any, payload: bytes | None = None, /) -> bool:
        """See IClientConnection."""
        return self.forward(as_groups(messages, payload), None)

    def forward(self, groups: Sequence[TaskGroup], token: Any, *, retain: bool = False) -> bool:
        """See IRelayConnection."""
        with self._changed:
            accepted = self._offer(groups, token, retain=retain)
        if accepted:
            self._wake()
        return accepted

    def _offer(self, groups: Sequence[TaskGroup], token: Any = None, *, retain: bool = False) -> bool:
        if self._closing:
            raise ClosedError(f"the connection to port {self._port} is closed; connect again")
        self._window.check(groups)
        return not groups or self._window.offer(groups, token, retain=retain)

    def get_load(self, tasks: Iterable[int]) -> dict[int, float]:
        """See IClientConnection."""
        return self._loads.of(tasks, time.monotonic())

    def statistics(self) -> ClientStatistics:
        """See IClientConnection."""
        with self._changed:
            return ClientStatistics(
                self._window.ledger(),
                self._sent_messages,
                self._sent_batches,
                self._sent_bytes,
                max(0, self._connections - 1),
            )

    # --- for a worker that passes on ---------------------------------------------------------------

    def attach(
        self,
        on_settled: Callable[[Sequence[Settled]], None],
        on_released: Callable[[Sequence[Settled]], None],
        assignment_version: Callable[[], int],
        draining: Callable[[], bool],
    ) -> None:
        """See IRelayConnection."""
        self._callbacks = on_settled, on_released
        self._version, self._draining = assignment_version, draining

    def follow(self, tasks: Collection[int]) -> None:
        """See IRelayConnection."""
        with self._changed:
            if self._followed.issuperset(tasks):
                return
            self._followed.update(tasks)
            self._follow_told = False
        self._wake()

    def quiet(self, task: int) -> bool:
        """See IRelayConnection."""
        with self._changed:
            return self._window.quiet(task)

    def follows(self, task: int, workers: Collection[int], position: int) -> bool:
        """See IRelayConnection."""
        with self._changed:
            return self._window.follows(task, workers, position)

    # --- the end -------------------------------------------------------------------------------------

    def take_back(self, timeout: float) -> list[tuple[TaskGroup, Any]]:
        """See IRelayConnection."""
        left: list[tuple[TaskGroup, Any]] = []
        self._end(timeout, lambda: left.extend(self._window.take_back()))
        return left

    def close(self, timeout: float = 10.0) -> None:
        """See IConnection."""
        self._end(timeout, self._abandon)

    def abort(self) -> None:
        """See IConnection."""
        self._end(0.0, self._abandon)

    def _abandon(self) -> None:
        self._settled += self._window.abandon(DropReason.CLOSED)

    def _end(self, timeout: float, give_up: Callable[[], None]) -> None:
        with self._changed:
            self._closing = True
            if self._status is not ConnectionStatus.CLOSED:
                self._changed.wait_for(lambda: not self._window.messages, timeout)
            if self._status is ConnectionStatus.CLOSED:  # by another thread meanwhile
                return
            self._status = ConnectionStatus.CLOSED
            give_up()
            self._changed.notify_all()
        self._stop()
