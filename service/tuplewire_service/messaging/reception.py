"""What arrives, counted by its source and handed to whoever takes it; the same for all our transports."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Sequence

from tuplewire.errors import RefusedError
from tuplewire.group import TaskGroup
from tuplewire_service.messaging.base import IConnectionCallback, InboundSession, ReceiveCount, ReceivedBatch
from tuplewire_service.messaging.receiving_end import CLIENT_SOURCE

logger = logging.getLogger(__name__)

OTHER = "other"
"""Stands for all that is not counted apart."""
MAX_SOURCES = 1000
"""Sources that are counted apart; bounds what hostile senders make us remember."""


class Reception:
    """Used by one thread at a time. refused_messages: how many, by the error's code."""

    def __init__(self, callback: IConnectionCallback) -> None:
        self.refused_messages: Counter[str] = Counter()
        self._callback = callback
        self._received: dict[str, list[int]] = {}

    def counts(self) -> list[ReceiveCount]:
        """Return what has arrived, by source."""
        return [ReceiveCount(source, *counts) for source, counts in list(self._received.items())]

    def keep(self, sources: Collection[str]) -> None:
        """Forget what has arrived from workers other than these, which are gone."""
        for source in self._received.keys() - {*sources, CLIENT_SOURCE, OTHER}:
            del self._received[source]

    def count(self, source: str, groups: Sequence[TaskGroup]) -> None:
        """Count a frame."""
        if source not in self._received and len(self._received) >= MAX_SOURCES:
            source = OTHER
        counts = self._received.setdefault(source, [0, 0, 0])
        counts[0] += sum(map(len, groups))
        counts[1] += 1
        counts[2] += sum(len(group.data) for group in groups)

    def deliver(
        self, groups: Sequence[TaskGroup], inbound: InboundSession, assignment_version: int
    ) -> tuple[list[tuple[TaskGroup, RefusedError]], list[TaskGroup]]:
        """Hand groups over; return those that are refused, and those that are done with already."""
        batch = ReceivedBatch.arrived(groups, inbound, assignment_version)
        try:
            self._callback.recv(batch)
        except Exception:
            logger.exception("callback.failed", extra={"peer": inbound.source})
            error = RefusedError("the receiver failed; its log says why")
            batch.refusals = [(group, error) for group in groups]
        for group, error in batch.refusals:
            self.refused_messages[error.code] += len(group)
        if batch.held:
            return batch.refusals, []
        refused = {id(group) for group, _ in batch.refusals}
        return batch.refusals, [group for group in groups if id(group) not in refused]
