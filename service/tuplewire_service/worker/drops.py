"""Accounting for accepted messages that cannot be routed. Design: docs/design/sessions.md."""

from __future__ import annotations

from collections.abc import Iterable

from tuplewire.session.ledger import DropReason, Ledger
from tuplewire.text.events import event_logger
from tuplewire.text.log_rate import LogRate
from tuplewire.values.group import TaskGroup
from tuplewire_service.messaging.base import InboundSession

logger = event_logger(__name__)


class Drops:
    """Drops messages of one worker, and counts each by its reason. Call only from the event loop."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._log_rate = LogRate()

    def give_up(self, group: TaskGroup, inbound: InboundSession, reason: DropReason, why: str) -> None:
        """Count messages as dropped, log it at a limited rate, and release them to their sender."""
        if messages := self._log_rate.due(reason, len(group)):
            extra = {"task": group.task, "messages": messages, "reason": reason.value, "why": why}
            logger.warning("messages.dropped", extra=extra)
        self._ledger.dropped[reason] += len(group)
        inbound.release(group.task, len(group), group.size_bytes)

    def unroutable(self, group: TaskGroup, inbound: InboundSession) -> None:
        """Drop messages that were accepted for a task without an owner."""
        self.give_up(group, inbound, DropReason.UNKNOWN_TASK, "nobody holds the task any more")

    def lose(self, groups: Iterable[TaskGroup]) -> None:
        """Count messages that were not routed because of a defect or the shutdown, without releasing them."""
        self._ledger.dropped[DropReason.SHUTDOWN] += sum(map(len, groups))
