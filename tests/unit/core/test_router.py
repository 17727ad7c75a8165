"""Routing: refusals, dropped messages, the transfer queue, and no state of removed tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from helpers.cursors import cursor_of, rejection_of
from helpers.logged import logged
from helpers.queues import ASSIGNMENT, Program, consumers_of, queues_of, subscribe

from tuplewire.errors import PermissionDeniedError, StaleAssignmentError, TooManyHopsError
from tuplewire.session.ledger import DropReason, Ledger
from tuplewire.settings.config import MIB
from tuplewire.values.group import TaskGroup
from tuplewire_service.messaging.base import ReceivedBatch
from tuplewire_service.worker import receive_queues
from tuplewire_service.worker.assignment import AssignedWorker, Assignment
from tuplewire_service.worker.router import Router
from tuplewire_service.worker.routing_table import RoutingTable
from tuplewire_service.worker.transfer_queue import TransferQueue


def test_messages_that_are_given_up_are_told_of(caplog: pytest.LogCaptureFixture) -> None:
    """Dropped messages are logged by task, with number and reason, and their sender gets space again."""
    program = Program()
    queue, ledger = queue_to(Connection())
    queue.drop_unroutable(TaskGroup.of(3, [b"x", b"y"]), program)
    (record,) = caplog.records
    assert record.getMessage().startswith("messages.dropped task=3 messages=2 reason=unknown_task")
    assert (ledger.dropped[DropReason.UNKNOWN_TASK], program.released) == (2, 2)


async def test_nobody_else_consumes_from_a_task_that_runs_here(router: Router) -> None:
    """Consumers are refused for a task that the worker runs itself, and accepted for other tasks."""
    router.consumers.program_tasks = frozenset({0})
    cursor = cursor_of(0, 0, 0, 10, 1000)
    with pytest.raises(PermissionDeniedError, match="task 0 is run by worker here itself"):
        subscribe(router, "c", [cursor])
    router.consumers.program_tasks = frozenset()
    assert subscribe(router, "c", [cursor]).end_error is None


async def test_a_dead_letter_task_without_an_owner_is_logged(
    router: Router, caplog: pytest.LogCaptureFixture
) -> None:
    """An assignment without the dead-letter task is applied, with a warning that names the task."""
    router._settings = replace(router._settings, dead_letter_task=7)
    assert router.update_assignment(replace(ASSIGNMENT, version=2))
    (told,) = logged(caplog, "dead_letter_task.not_assigned")
    assert told["task"] == 7


async def test_messages_that_circle_are_refused(router: Router) -> None:
    """After more hops than any move requires, messages to a remote task are refused."""
    for task, hops, refused in ((1, 16, False), (1, 17, True), (0, 17, False)):
        group = TaskGroup.of(task, [b"x"])
        group = replace(group, path=5 + hops * ((1 << 32) + (1 << 56)), entry_sequence=1)
        assert group.unqueued_hops == hops
        batch = ReceivedBatch.for_callback([group], Program(9))
        router.recv(batch)
        assert [type(error) for _, error in batch.refusals] == [TooManyHopsError] * refused, (task, hops)


async def test_rejected_messages_that_wait_count_as_lost_at_the_end(router: Router) -> None:
    """Rejected messages that are still delayed at shutdown count as dropped{shutdown}."""
    router.recv(ReceivedBatch.for_callback([TaskGroup.of(0, [b"a", b"b"])], Program()))
    subscription = subscribe(router.consumers, "c", [cursor_of(0, 0, 0, 10, 1000)])
    assert len(subscription.take(1000)) == 1
    rejected = rejection_of(1, 1, 10.0, "", wait=False)
    subscription.apply_progress([cursor_of(0, 2, 2, 10, 1000, (rejected,))])
    assert len(router.rejections.waiting_copies) == 1
    await router.close(0.1, [], {})
    assert router.ledger().dropped[DropReason.SHUTDOWN] == 1
    assert router.ledger().balanced


def test_a_worker_without_an_assignment_says_so() -> None:
    """Without an assignment, the error describes how to get one; with one, there is no error."""
    table = RoutingTable("w")
    assert "has no assignment yet: push one" in str(table.not_ready_error)
    table.replace(Assignment(1, "t", (AssignedWorker("w", "127.0.0.1:1", (0,)),)))
    assert table.not_ready_error is None


async def test_messages_by_a_newer_assignment_wait_for_it(router: Router) -> None:
    """A peer with a newer assignment may send to a task early: its messages are held."""
    batch = ReceivedBatch.for_callback([TaskGroup.of(1, [b"x"])], Program(9))
    batch.assignment_version = 2
    router.recv(batch)
    assert router.newest_peer_version == 2
    assert list(batch.refusals) == []
    assert (router.connections.pending_messages, router.pending_messages) == (0, 1)
    assert router.move_count == 1


@pytest.mark.parametrize(("version", "stale"), [(0, False), (1, True), (2, True), (3, False)])
async def test_programs_that_route_by_an_old_assignment_are_told(
    router: Router, version: int, *, stale: bool
) -> None:
    """A program that names an outdated version is refused; one that names no version is not."""
    router.update_assignment(replace(ASSIGNMENT, version=3))
    batch = ReceivedBatch.for_callback([TaskGroup.of(1, [b"x"])], Program())
    batch.assignment_version = version
    router.recv(batch)
    assert [type(error) for _, error in batch.refusals] == [StaleAssignmentError] * stale


class Connection:
    """The connection to the worker of tasks 1 and 2, which is also the set of all connections."""

    def __init__(self, *, closes_after: int = 100) -> None:
        self.sent: list[tuple[list[int], bool]] = []
        self.watched: list[list[int]] = []
        self._closes_after = closes_after
        self.buffer = self.ack_handler = self

    def get_or_open(self, _worker: Any) -> Connection:
        return self

    def watch_releases(self, tasks: list[int]) -> None:
        self.watched.append(tasks)

    def offer(self, groups: Sequence[TaskGroup], _inbound: Any, *, retain: bool) -> bool:
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
    return TransferQueue(table, connections, lost_workers, ledger), ledger


async def test_releases_are_watched_for_whoever_waits_for_them() -> None:
    """Releases are requested only for senders that need them, because each costs a grant."""
    connection = Connection()
    queue, _ = queue_to(connection)
    queue.queue.append((TaskGroup.of(1, [b"x"]), Program(awaits_releases=False)))
    queue.queue.append((TaskGroup.of(2, [b"y"]), Program()))
    queue.send_all()
    assert connection.sent == [([1], False), ([2], False)]
    assert connection.watched == [[2]]


async def test_what_a_closed_connection_does_not_take_is_counted() -> None:
    """If the connection closes between two runs, the second run counts as dropped."""
    connection, program = Connection(closes_after=1), Program()
    queue, ledger = queue_to(connection)
    queue.queue.append((TaskGroup.of(1, [b"x"]), program))
    queue.queue.append((TaskGroup.of(1, [b"y", b"z"]).numbered(5, 0, retained_upstream=True), program))
    queue.send_all()
    assert connection.sent == [([1], False)]
    assert ledger.dropped[DropReason.UNKNOWN_TASK] == 2


async def test_what_follows_by_another_way_goes_after_what_waits() -> None:
    """Messages that are sent immediately do not overtake messages waiting for the event loop."""
    connection: Any = Connection()
    queue, _ = queue_to(connection)
    queue.queue.append((TaskGroup.of(1, [b"x"]), Program()))
    queue.send_behind(connection, TaskGroup.of(2, [b"y"]).numbered(5, 0), Program())
    assert connection.sent == [([1], False), ([2], False)]


def assignment(version: int, *tasks: int) -> Assignment:
    """Return an assignment that gives the worker these tasks."""
    return Assignment(version, "t", (AssignedWorker("here", "127.0.0.1:1", tasks),))


def test_a_task_that_was_forgotten_begins_after_all_that_were_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A forgotten task that returns starts after the highest sequence of all forgotten tasks."""
    monkeypatch.setattr(receive_queues, "_MAX_LAST_SEQUENCES", 10)
    queues = queues_of(range(100))
    for task in range(100):
        queues.put(TaskGroup.of(task, [b"x"] * (1 + task % 7)), Program())
    queues.take_leaving(queues.set_local_tasks([]))
    queues.set_local_tasks([0])
    assert subscribe(consumers_of(queues), "c", [cursor_of(0, 0, 0, 10, MIB)]).positions == [(0, 7)]


async def test_tasks_that_have_gone_are_not_counted_any_more(router: Router) -> None:
    """Entry sequences of removed tasks are forgotten, even if the tasks received messages."""
    for version in range(2, 7):
        tasks = range(version * 100, (version + 1) * 100)
        router.update_assignment(assignment(version, *tasks))
        router.recv(ReceivedBatch.for_callback([TaskGroup.of(task, [b"x"]) for task in tasks], Program()))
        assert router._entry_sequences._next_sequences.keys() == set(tasks)
    assert router.move_count == 0
    assert router.ledger().balanced
