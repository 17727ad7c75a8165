"""Removed and unknown tasks leave no state in a worker, and only changed loads are reported."""

from __future__ import annotations

import gc

from helpers.cursors import cursor_of
from helpers.queues import consumers_of, queues_of
from helpers.senders import Program

from tuplewire import TaskGroup
from tuplewire.settings.config import MIB
from tuplewire_service.messaging.base import ReceivedBatch
from tuplewire_service.messaging.subscription import SubscribeRequest
from tuplewire_service.worker.assignment import AssignedWorker, Assignment
from tuplewire_service.worker.queue import Queue
from tuplewire_service.worker.router import Router

MANY = 10_000


def assignment(version: int, *tasks: int) -> Assignment:
    """Return an assignment that gives the worker these tasks."""
    return Assignment(version, "t", (AssignedWorker("here", "127.0.0.1:1", tasks),))


def test_queues_that_have_gone_leave_nothing() -> None:
    """After ten generations of new tasks, only the queues of the last generation exist."""
    before = count_of_queues()
    queues = queues_of(())
    for generation in range(10):
        queues.leave(queues.assign(range(generation * MANY, (generation + 1) * MANY)))
    assert count_of_queues() <= before + MANY


def count_of_queues() -> int:
    """Return the number of queues in this process."""
    gc.collect()
    return sum(type(each) is Queue for each in gc.get_objects())


def test_a_task_that_was_forgotten_begins_after_all_that_were_forgotten() -> None:
    """A forgotten task that returns starts after the highest sequence of all forgotten tasks."""
    queues = queues_of(range(2 * MANY))
    for task in range(2 * MANY):
        queues.put(TaskGroup.of(task, [b"x"] * (1 + task % 7)), Program())
    queues.leave(queues.assign([]))
    queues.assign([0])
    request = SubscribeRequest("", "consumer", 1, 0, (cursor_of(0, 0, 0, 10, MIB),))
    assert consumers_of(queues).subscribe(request, lambda: None).starts == [(0, 7)]


async def test_unknown_tasks_are_not_counted(router: Router) -> None:
    """Messages for unassigned tasks are refused and leave no state."""
    batch = ReceivedBatch.arrived([TaskGroup.of(task, [b"x"]) for task in range(2, MANY)], Program())
    router.recv(batch)
    assert len(batch.refusals) == MANY - 2
    assert not router._entry_sequences._next


async def test_tasks_that_have_gone_are_not_counted_any_more(router: Router) -> None:
    """Entry sequences of removed tasks are forgotten, even if the tasks received messages."""
    for version in range(2, 7):
        tasks = range(version * 100, (version + 1) * 100)
        router.update(assignment(version, *tasks))
        router.recv(ReceivedBatch.arrived([TaskGroup.of(task, [b"x"]) for task in tasks], Program()))
        assert router._entry_sequences._next.keys() == set(tasks)
    assert router.moving_tasks == 0
    assert router.ledger().balanced
