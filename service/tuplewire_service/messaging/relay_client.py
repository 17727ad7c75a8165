"""The verbs of a relay connection that its sending end answers, whatever carries it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from tuplewire.connection.sending_end import SendingEnd, Told
from tuplewire.group import TaskGroup
from tuplewire.message import as_groups
from tuplewire_service.messaging.base import ClientStatistics, ConnectionStatus, IRelayConnection


class RelayClient(IRelayConnection):
    """A SendingEnd in the form of the plug-in contract; how it is carried and closed is left to say."""

    def __init__(self, end: SendingEnd, port: int) -> None:
        self._end = end
        self._port = port

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._end!r}>"

    @property
    def port(self) -> int:
        """See IConnection."""
        return self._port

    @property
    def status(self) -> ConnectionStatus:
        """See IConnection."""
        if self._end.ended or self._end.failed is not None:
            return ConnectionStatus.CLOSED
        return ConnectionStatus.READY if self._end.connected else ConnectionStatus.CONNECTING

    @property
    def congested(self) -> frozenset[int]:
        """See IClientConnection."""
        return self._end.congested

    def send(self, messages: Any, payload: bytes | None = None, /, *, timeout: float | None = None) -> None:
        """See IClientConnection."""
        self._end.send(as_groups(messages, payload), timeout)

    def try_send(self, messages: Any, payload: bytes | None = None, /) -> bool:
        """See IClientConnection."""
        return self._end.try_send(as_groups(messages, payload))

    def forward(self, groups: Sequence[TaskGroup], token: Any, *, retain: bool = False) -> bool:
        """See IRelayConnection."""
        return self._end.try_send(groups, token, retain=retain)

    def attach(
        self,
        on_settled: Told,
        on_released: Told,
        assignment_version: Callable[[], int],
        draining: Callable[[], bool],
    ) -> None:
        """See IRelayConnection."""
        self._end.attach(on_settled, on_released, assignment_version, draining)

    def watch_releases(self, tasks: Collection[int]) -> None:
        """See IRelayConnection."""
        self._end.watch_releases(tasks)

    def all_released(self, task: int) -> bool:
        """See IRelayConnection."""
        return self._end.all_released(task)

    def has_unreleased_before(self, task: int, workers: Collection[int], entry_sequence: int) -> bool:
        """See IRelayConnection."""
        return self._end.has_unreleased_before(task, workers, entry_sequence)

    def get_load(self, tasks: Iterable[int]) -> dict[int, float]:
        """See IClientConnection."""
        return self._end.loads(tasks)

    def statistics(self) -> ClientStatistics:
        """See IClientConnection."""
        counts = self._end.counts
        return ClientStatistics(
            self._end.ledger(),
            counts.messages,
            counts.frames,
            counts.bytes,
            max(0, counts.connections - 1),
            self._end.receiver_assignment_version,
        )
