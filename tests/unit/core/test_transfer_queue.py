"""The transfer queue: its calls to the connection to another worker, and undelivered messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from helpers.senders import Program

from tuplewire.session.ledger import DropReason, Ledger
from tuplewire.values.group import TaskGroup
from tuplewire_service.worker.assignment import AssignedWorker, Assignment
from tuplewire_service.worker.drops import Drops
from tuplewire_service.worker.routing_table import RoutingTable
from tuplewire_service.worker.transfer_queue import TransferQueue


class Connection:
    """The connection to the worker of tasks 1 and 2, which is also the set of all connections."""

    def __init__(self, *, closes_after: int = 100) -> None:
        self.sent: list[tuple[list[int], bool]] = []
        self.watched: list[list[int]] = []
        self._closes_after = closes_after
        self.buffer = self.receipts = self

    def to(self, _worker: Any) -> Connection:
        """Return itself."""
        return self

    def watch(self, tasks: list[int]) -> None:
        """Record the tasks."""
        self.watched.append(tasks)

    def offer(self, groups: Sequence[TaskGroup], _inbound: Any, *, retain: bool) -> bool:
        """Accept groups until the connection closes."""
        if len(self.sent) == self._closes_after:
            return False
        self.sent.append(([group.task for group in groups], retain))
        return True


def queue_to(connection: Connection) -> tuple[TransferQueue, Ledger]:
    """Return a queue to a connection, and the ledger that it updates."""
    ledger = Ledger()
    table = RoutingTable("here")
    there = AssignedWorker("there", "127.0.0.1:2", (1, 2))
    table.replace(Assignment(1, "t", (AssignedWorker("here", "127.0.0.1:1", (0,)), there)))
    connections: Any = connection
    lost_workers: Any = None
    return TransferQueue(table, connections, lost_workers, Drops(ledger)), ledger


async def test_releases_are_watched_for_whoever_waits_for_them() -> None:
    """Releases are requested only for senders that need them, because each costs a grant."""
    connection = Connection()
    queue, _ = queue_to(connection)
    queue.put(TaskGroup.of(1, [b"x"]), Program(needs_release_acks=False))
    queue.put(TaskGroup.of(2, [b"y"]), Program())
    queue.drain()
    assert connection.sent == [([1], False), ([2], False)]
    assert connection.watched == [[2]]


async def test_what_a_closed_connection_does_not_take_is_counted() -> None:
    """If the connection closes between two runs, the second run counts as dropped."""
    connection, program = Connection(closes_after=1), Program()
    queue, ledger = queue_to(connection)
    queue.put(TaskGroup.of(1, [b"x"]), program)
    queue.put(TaskGroup.of(1, [b"y", b"z"]).at(5, 0, retained_upstream=True), program)
    queue.drain()
    assert connection.sent == [([1], False)]
    assert ledger.dropped[DropReason.UNKNOWN_TASK] == 2


async def test_what_follows_by_another_way_goes_after_what_waits() -> None:
    """Messages that are sent immediately do not overtake messages waiting for the event loop."""
    connection: Any = Connection()
    queue, _ = queue_to(connection)
    queue.put(TaskGroup.of(1, [b"x"]), Program())
    queue.follow(connection, TaskGroup.of(2, [b"y"]).at(5, 0), Program())
    assert connection.sent == [([1], False), ([2], False)]
