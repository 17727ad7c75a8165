"""Workers that are gone without a goodbye: second copies may overtake what this worker had from them."""

from __future__ import annotations

from tuplewire.group import TaskGroup, entry_worker
from tuplewire_service.messaging.base import InboundSession

_MOST = 10_000
"""So many numbers are remembered; each start of a worker has its own."""


class LostWorkers:
    """Tells which messages may have been delivered before: programs send again what a lost worker had."""

    def __init__(self) -> None:
        self._numbers: dict[int, None] = {}

    def __bool__(self) -> bool:
        return bool(self._numbers)

    def lose(self, number: int) -> None:
        """Take note that a worker, by its number, is not connected any more."""
        self._numbers[number] = None
        if len(self._numbers) > _MOST:
            del self._numbers[next(iter(self._numbers))]

    def find(self, number: int) -> None:
        """Take note that a worker is connected."""
        self._numbers.pop(number, None)

    def had(self, group: TaskGroup, inbound: InboundSession) -> bool:
        """Whether messages were accepted by a lost worker, so that a second copy may have been faster."""
        return (entry_worker(group.forwarded) or inbound.worker_number) in self._numbers
