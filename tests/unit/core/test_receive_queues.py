"""Receive queues: load, order of display, waiting times and rejections."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

import pytest
from helpers.cursors import cursor_of, rejection_of
from helpers.queues import consumers_of, queues_of
from helpers.rejecting import RejectionsWithoutTimers
from helpers.senders import Program

from tuplewire.settings.config import MIB
from tuplewire.values.group import TaskGroup
from tuplewire_service.messaging.subscription import SubscribeRequest
from tuplewire_service.worker.queue_subscription import QueueSubscription
from tuplewire_service.worker.receive_queues import ReceiveQueues


@pytest.mark.parametrize(
    ("payloads", "load"),
    [([b""] * 5, 0.5), ([b""] * 10, 1.0), ([b""] * 20, 1.0), ([b"x" * MIB], 0.5), ([b"x" * MIB] * 2, 1.0)],
)
def test_load_is_how_full_the_queue_is(payloads: list[bytes], load: float) -> None:
    """The load is the larger of the fill ratios in messages and bytes, at most 1."""
    queues = queues_of([1], receive_queue_messages=10, receive_queue_bytes=2 * MIB)
    assert queues.load(1) == 0.0
    queues.put(TaskGroup.of(1, payloads), Program())
    assert queues.load(1) == load


def test_the_tasks_that_matter_most() -> None:
    """Congested tasks are chosen first, then tasks with most unacknowledged messages, then by number."""
    queues = queues_of(range(3000))
    for task, messages in ((2500, 3), (7, 2), (2999, 1)):
        queues.put(TaskGroup.of(task, [b""] * messages), Program())
    for most, chosen in ((1, [1500]), (3, [7, 1500, 2500]), (6, [0, 1, 7, 1500, 2500, 2999])):
        assert asyncio.run(queues.shown({1500}, most)) == chosen
    assert asyncio.run(queues.shown((), 10_000)) == list(range(3000))


def test_what_is_acknowledged_matters_less() -> None:
    """A task with acknowledged messages ranks below a task with unacknowledged ones."""
    queues = queues_of(range(3))
    for task, messages in ((1, 9), (2, 2)):
        queues.put(TaskGroup.of(task, [b""] * messages), Program())
    log = queues._queues[1].log
    log.take(9, MIB, MIB)
    log.progress(9, 9)
    assert asyncio.run(queues.shown((), 1)) == [2]


def subscribed(queues: ReceiveQueues, tasks: Iterable[int]) -> QueueSubscription:
    """Subscribe to tasks, with credit for ten messages each."""
    cursors = [cursor_of(task, 0, 0, 10, 1000) for task in tasks]
    return consumers_of(queues).subscribe(SubscribeRequest("", "c", 1, 0, cursors), lambda: None)


def test_the_wait_in_a_queue_is_measured_once() -> None:
    """The wait is measured at the first delivery, not at a redelivery to another consumer."""
    queues = queues_of([1])
    queues.put(TaskGroup.of(1, [b"a", b"b"]), Program())
    assert len(subscribed(queues, [1]).take(1000)) == 1
    assert sum(queues.wait.counts) == 2
    request = SubscribeRequest("", "d", 1, 0, [cursor_of(1, 0, 0, 10, 1000)])
    again = consumers_of(queues).subscribe(request, lambda: None)
    assert len(again.take(1000)) == 1
    assert sum(queues.wait.counts) == 2


def test_a_late_rejection_is_passed_over() -> None:
    """Rejections of acknowledged messages are ignored; later rejections count."""
    queues = queues_of([1])
    queues.put(TaskGroup.of(1, [b"a", b"b", b"c"]), Program())
    rejections = RejectionsWithoutTimers()
    request = SubscribeRequest("", "c", 1, 0, [cursor_of(1, 0, 0, 10, 1000)])
    subscription = consumers_of(queues, rejections).subscribe(request, lambda: None)
    subscription.take(1000)
    subscription.progress([cursor_of(1, 2, 3, 10, 1000)])
    late = (rejection_of(1, 1, 0.0, "", wait=False), rejection_of(2, 3, 0.0, "", wait=False))
    subscription.progress([cursor_of(1, 3, 3, 10, 1000, late)])
    assert queues._queues[1].rejected == 2
    assert rejections.waiting == 1


def test_a_held_task_may_be_gone_when_its_time_comes() -> None:
    """A delayed task that has moved away does not prevent other delayed tasks from resuming."""
    queues = queues_of([1, 2])
    for task in (1, 2):
        queues.put(TaskGroup.of(task, [b"a"]), Program())
    woken: list[None] = []
    cursors = [cursor_of(task, 0, 0, 10, 1000) for task in (1, 2)]
    request = SubscribeRequest("", "c", 1, 0, cursors)
    consumers = consumers_of(queues)
    subscription = consumers.subscribe(request, lambda: woken.append(None))
    for queue in queues._queues.values():
        queue.held_until = time.monotonic() + 60
    assert subscription.take(1000) == []
    assert consumers.rejections._held.keys() == {1, 2}
    assert queues.leave(queues.assign([2]))
    queues._queues[2].held_until = 0.0
    woken.clear()
    consumers.rejections.retry_held()
    assert len(woken) == 1
    assert len(subscription.take(1000)) == 1
