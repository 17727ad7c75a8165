"""What stands for a worker's Rejections where there is no event loop."""

from __future__ import annotations

import time
from collections.abc import Callable

from tuplewire.session.delivery import DeliveryLog
from tuplewire.session.rejection import Rejection
from tuplewire.settings.config import MIB
from tuplewire_service.worker.rejected_messages import RejectedMessages, RejectionOutcome
from tuplewire_service.worker.rejections import Rejections


class RejectionsWithoutTimers(Rejections):
    """The same state, and nothing comes back by itself."""

    def __init__(self, limit: int = 5, dead_letter_task: int | None = None, most: int = 100) -> None:
        self.messages = RejectedMessages(limit, dead_letter_task, self, most, MIB)
        self.on_time: Callable[[], None] = lambda: None

    def reject(
        self,
        task: int,  # noqa: ARG002 - nothing is logged here
        log: DeliveryLog,
        each: Rejection,
        *,
        leaves: bool = False,
    ) -> RejectionOutcome | None:
        """See Rejections."""
        return self.messages.reject(log, each, time.monotonic(), 0, leaves=leaves)

    def wake(self, at: float | None) -> None:
        """Look at nothing."""
