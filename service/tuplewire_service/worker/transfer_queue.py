"""The transfer queue: outbound messages, grouped by destination worker.

All queued messages are sent together. The senders' credit bounds the queue. It also drops the messages that
cannot be routed. Used by router.py. Owns the outbound messages of one loop turn. Call only from the event
loop. Source: Storm's transfer queue and `TransferDrainer`. Design: docs/design/moves.md.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain, groupby
from operator import attrgetter

from tuplewire.connection.sending_end import SendingEnd
from tuplewire.errors import ClosedError, MessageTooLargeError, TuplewireError
from tuplewire.session.ledger import DropReason, Ledger
from tuplewire.session.pieces import split_by_limit
from tuplewire.text.events import LogRateLimiter, event_logger
from tuplewire.values.group import TaskGroup, entry_worker
from tuplewire_service.messaging.base import InboundSession
from tuplewire_service.worker.assignment import AssignedWorker
from tuplewire_service.worker.connections import Connections
from tuplewire_service.worker.moves import HeldGroup, LostWorkers
from tuplewire_service.worker.routing_table import RoutingTable

logger = event_logger(__name__)


@dataclass(eq=False, repr=False)
class TransferQueue:
    """Holds outbound groups until send_all(). Call only from the event loop."""

    table: RoutingTable
    connections: Connections
    lost_workers: LostWorkers
    ledger: Ledger
    queue: list[HeldGroup] = field(default_factory=list)
    """The groups for the next send_all(), which replaces the list."""
    _log_rate: LogRateLimiter = field(default_factory=LogRateLimiter)

    def drop(self, group: TaskGroup, inbound: InboundSession, reason: DropReason, detail: str) -> None:
        """Count messages as dropped, log it at a limited rate, and release them to their sender."""
        if messages := self._log_rate.count_event(reason, group.count):
            extra = {"task": group.task, "messages": messages, "reason": reason.value, "detail": detail}
            logger.warning("messages.dropped", extra=extra)
        self.ledger.dropped[reason] += group.count
        inbound.release(group.task, group.count, group.size_bytes)

    def drop_unroutable(self, group: TaskGroup, inbound: InboundSession) -> None:
        """Drop messages that were accepted and have no owner, or only a closed connection to it."""
        self.drop(group, inbound, DropReason.UNKNOWN_TASK, "no worker owns the task")

    def count_lost(self, groups: Iterable[TaskGroup]) -> None:
        """Count messages that were not routed because of a defect or the shutdown, without releasing them."""
        self.ledger.dropped[DropReason.SHUTDOWN] += sum(map(len, groups))

    def send_all(self) -> None:
        """Group all messages by destination worker, in order, and send them.

        Messages of several programs keep the order of their entry sequences. An error is a defect: it is
        reported to the loop, and unsent messages are passed to count_lost().
        """
        if not self.queue:
            return
        queue, self.queue = self.queue, []
        runs_by_worker: dict[str, list[tuple[AssignedWorker, InboundSession, list[TaskGroup]]]] = {}
        for group, inbound in queue:
            owner = self.table.owner_by_task.get(group.task)
            if owner is None:
                self.drop_unroutable(group, inbound)
                continue
            runs = runs_by_worker.setdefault(owner.worker_id, [])
            if runs and runs[-1][1] is inbound:
                runs[-1][2].append(group)
            else:
                runs.append((owner, inbound, [group]))
        waiting = deque(chain.from_iterable(runs_by_worker.values()))
        try:
            while waiting:
                owner, inbound, groups = waiting[0]
                self._send(self.connections.get_or_open(owner.peer), inbound, groups)
                waiting.popleft()
        except Exception as error:  # noqa: BLE001 - reported to the loop
            self.count_lost(group for _, _, groups in waiting for group in groups)
            context = {"message": "defect in the transfer queue", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)

    def send_behind(self, connection: SendingEnd, group: TaskGroup, inbound: InboundSession) -> None:
        """Send messages of another worker immediately, behind earlier ones on the same connection."""
        self.send_all()
        # The earlier messages are not in a cycle, so the hop count restarts.
        self._send(connection, inbound, [group.as_dequeued(0)])

    def _send(self, connection: SendingEnd | None, inbound: InboundSession, groups: list[TaskGroup]) -> None:
        # A program may have resent these messages already, so those of a lost worker are marked.
        if inbound.worker_number and connection is not None:
            if (lost := self.lost_workers).numbers:
                groups = [each.as_redelivered() if lost.accepted(each, inbound) else each for each in groups]
            # Each task continues in the flow of its earlier messages.
            paths: dict[int, int | None] = {}
            for group in groups:
                if group.task not in paths:
                    workers = (entry_worker(group.path) or inbound.worker_number,)
                    path = connection.session.flow_path_before(group.task, workers, group.entry_sequence)
                    paths[group.task] = path
            groups = [each.as_forwarded(inbound.worker_number, paths[each.task] or 0) for each in groups]
        for group in self._submit(connection, inbound, groups):
            self.drop_unroutable(group, inbound)

    def _submit(
        self, connection: SendingEnd | None, inbound: InboundSession, groups: list[TaskGroup]
    ) -> list[TaskGroup]:
        """Submit groups to a connection; return the groups that it did not accept because it is closed."""
        # No connection is opened after Connections.close().
        if connection is None:
            return groups
        try:
            # The receiver may otherwise delay a release that the sender waits for.
            if inbound.awaits_releases:
                connection.ack_handler.watch_releases([group.task for group in groups])
            for retain, run in groupby(groups, attrgetter("retained_upstream")):
                run_groups = list(run)
                if not connection.buffer.offer(run_groups, inbound, retain=retain):
                    return groups
                groups = groups[len(run_groups) :]
        except ClosedError:
            return groups
        except MessageTooLargeError as error:
            # Separate the messages that fit, so that only the others are dropped.
            pieces = [piece for group in groups for piece in split_by_limit(group, error.limit_bytes)]
            for fits, group in pieces:
                if not fits:
                    self.drop(group, inbound, DropReason.TOO_LARGE, str(error))
            return self._submit(connection, inbound, [group for fits, group in pieces if fits])
        except TuplewireError as error:
            # These messages were accepted, so they are counted as dropped, and released.
            for group in groups:
                self.drop(group, inbound, DropReason.REFUSED, str(error))
        return []
