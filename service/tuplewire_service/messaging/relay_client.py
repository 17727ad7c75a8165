"""A sending end as the plug-in contract has it, whatever carries it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tuplewire.connection.sending_end import SendingEnd
from tuplewire.group import TaskGroup
from tuplewire.message import as_groups
from tuplewire_service.messaging.base import ClientStatistics, ConnectionStatus, IRelayConnection


class RelayClient(SendingEnd, IRelayConnection):
    """The verbs of a relay connection; how it is carried and closed is left to say."""

    _port: int

    @property
    def port(self) -> int:
        return self._port

    @property
    def status(self) -> ConnectionStatus:
        if self.ended or self.failed is not None:
            return ConnectionStatus.CLOSED
        return ConnectionStatus.READY if self.connected else ConnectionStatus.CONNECTING

    def send(self, messages: Any, payload: bytes | None = None, /, *, timeout: float | None = None) -> None:
        super().send(as_groups(messages, payload), timeout=timeout)

    def try_send(self, messages: Any, payload: bytes | None = None, /) -> bool:
        return self.offer(as_groups(messages, payload))

    def forward(self, groups: Sequence[TaskGroup], token: Any, *, retain: bool = False) -> bool:
        return self.offer(groups, token, retain=retain)

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
