"""The connecting side of a transport whose streams carry sessions: one session to one worker."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from tuplewire.group import TaskGroup
from tuplewire.loop import EventLoopThread
from tuplewire.message import as_groups
from tuplewire.sender import Sender
from tuplewire.session.ledger import Settled
from tuplewire.session.pressure import OutboundPressure
from tuplewire_service.messaging.base import ClientStatistics, ConnectionStatus, IRelayConnection

_Told = Callable[[Sequence[Settled]], None]


class StreamedClient(IRelayConnection):
    """A Sender in the form of the plug-in contract."""

    def __init__(self, thread: EventLoopThread, make_sender: Callable[..., Sender]) -> None:
        self._thread = thread
        self._closed = False
        self._callbacks: tuple[_Told, _Told] | None = None
        self._sender = make_sender(on_settled=self._settled)
        thread.suspendables.add(self._sender)
        thread.call(self._sender.start)

    def _settled(self, settled: list[Settled], released: list[Settled]) -> None:
        if self._callbacks is not None:
            on_settled, on_released = self._callbacks
            if settled:
                on_settled(settled)
            if released:
                on_released(released)

    @property
    def congested(self) -> frozenset[int]:
        """See IClientConnection."""
        return self._sender.congested

    @property
    def port(self) -> int:
        """See IConnection."""
        return int(self._sender.address.rpartition(":")[2])

    @property
    def status(self) -> ConnectionStatus:
        """See IConnection."""
        if self._closed or self._sender.failed is not None:
            return ConnectionStatus.CLOSED
        return ConnectionStatus.READY if self._sender.connected else ConnectionStatus.CONNECTING

    def send(self, messages: Any, payload: bytes | None = None, /, *, timeout: float | None = None) -> None:
        """See IClientConnection."""
        self._sender.send(as_groups(messages, payload), timeout)

    def try_send(self, messages: Any, payload: bytes | None = None, /) -> bool:
        """See IClientConnection."""
        return self._sender.try_send(as_groups(messages, payload))

    def forward(self, groups: Sequence[TaskGroup], token: Any, *, retain: bool = False) -> bool:
        """See IRelayConnection."""
        return self._sender.try_send(groups, token, retain=retain)

    def attach(
        self,
        on_settled: _Told,
        on_released: _Told,
        assignment_version: Callable[[], int],
        draining: Callable[[], bool],
    ) -> None:
        """See IRelayConnection."""
        self._callbacks = on_settled, on_released
        self._sender.draining = draining
        self._sender.assignment_version = assignment_version

    def watch(self, pressure: OutboundPressure) -> None:
        """See IRelayConnection."""
        self._sender.pressure.told = pressure

    def blocked_tasks(self) -> Collection[int]:
        """See IRelayConnection."""
        return self._sender.blocked_tasks()

    def follow(self, tasks: Collection[int]) -> None:
        """See IRelayConnection."""
        self._sender.follow(tasks)

    def quiet(self, task: int) -> bool:
        """See IRelayConnection."""
        return self._sender.quiet(task)

    def follows(self, task: int, workers: Collection[int], position: int) -> bool:
        """See IRelayConnection."""
        return self._sender.follows(task, workers, position)

    def take_back(self, timeout: float) -> list[tuple[TaskGroup, Any]]:
        """See IRelayConnection."""
        if self._closed:
            return []
        self._closed = True
        return self._thread.run(self._sender.take_back(timeout))

    def get_load(self, tasks: Iterable[int]) -> dict[int, float]:
        """See IClientConnection."""
        return self._sender.loads(tasks)

    def statistics(self) -> ClientStatistics:
        """See IClientConnection."""
        counts = self._sender.counts
        return ClientStatistics(
            self._sender.ledger(),
            counts.messages,
            counts.frames,
            counts.bytes,
            max(0, counts.connections - 1),
        )

    def close(self, timeout: float = 10.0) -> None:
        """See IConnection."""
        if not self._closed:
            self._closed = True
            self._thread.run(self._sender.close(timeout))

    def abort(self) -> None:
        """See IConnection."""
        if not self._closed:
            self._closed = True
            self._thread.run(self._sender.abort())
