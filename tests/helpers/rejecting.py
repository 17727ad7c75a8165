"""What stands for a worker's Rejections where there is no event loop."""

from __future__ import annotations

import time
from collections.abc import Callable

from tuplewire.config import MIB
from tuplewire.session.delivery import DeliveryLog
from tuplewire.session.rejection import Rejection
from tuplewire_service.worker.rejected_messages import RejectedMessages, RejectionOutcome
from tuplewire_service.worker.rejections import Rejections


class RejectionsWithoutTimers(Rejections):
    """The same state, and nothing comes back by itself."""

    def __init__(self, limit: int = 5, dead_letter_task: int | None = None, most: int = 100) -> None:
        self.messages = RejectedMessages(limit, dead_letter_task, most, MIB)
        self.on_time: Callable[[], None] = lambda: None

    def reject(self, task: int, log: DeliveryLog, each: Rejection) -> RejectionOutcome | None:  # noqa: ARG002
        """See Rejections."""
        return self.messages.reject(log, each, time.monotonic(), 0)

    def release(self, _task: int, messages: int, size_bytes: int) -> None:
        """See InboundSession."""
        self.messages.released(messages, size_bytes)

    def wake(self, at: float | None) -> None:
        """Look at nothing."""
