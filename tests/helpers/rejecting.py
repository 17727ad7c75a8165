"""A worker's rejections without an event loop."""

from __future__ import annotations

from tuplewire.session.ledger import Ledger
from tuplewire.settings.config import MIB
from tuplewire_service.worker.rejections import Rejections
from tuplewire_service.worker.worker_settings import WorkerSettings


class RejectionsWithoutTimers(Rejections):
    """The same state without timers: no message is redelivered automatically."""

    def __init__(self, limit: int = 5, dead_letter_task: int | None = None, most: int = 100) -> None:
        settings = WorkerSettings(
            worker_id="w",
            reject_limit=limit,
            dead_letter_task=dead_letter_task,
            receive_queue_messages=most,
            receive_queue_bytes=MIB,
        )
        super().__init__(settings, Ledger(), lambda _: None, lambda _: True)

    def wake(self, at: float) -> None:
        """Do nothing."""
