"""Which tasks of many a picture shows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from tuplewire.group import TaskGroup
from tuplewire.session.delivery import DeliveryLog
from tuplewire.session.durations import QueueTimes
from tuplewire_service.worker.queue_subscription import Queue
from tuplewire_service.worker.shown_tasks import ShownTasks


class Tasks:
    """Queues of ten tasks, and a choice of three, on a clock of its own."""

    def __init__(self) -> None:
        self.now = 100.0
        self.queues = {task: Queue(task, DeliveryLog.after(0), QueueTimes(0), 0) for task in range(10)}
        self._shown = ShownTasks(lambda: self.now)

    def come(self, task: int, messages: int, *, done: bool = True) -> None:
        """Let messages come; done: and be acknowledged."""
        log = self.queues[task].log
        log.append(TaskGroup.of(task, [b""] * messages))
        if done:
            log.take(log.tail, 1 << 30, 1 << 30)
            log.progress(log.tail, log.tail)

    def look(self, urgent: Iterable[int] = (), most: int = 3) -> list[int]:
        """Return what is chosen a second later."""
        self.now += 1
        return list(asyncio.run(self._shown.choose(self.queues, set(urgent), most)))


@pytest.fixture
def tasks() -> Tasks:
    """Return them, looked at once."""
    found = Tasks()
    assert found.look() == [0, 1, 2]
    return found


def test_those_with_most_to_do_come_first(tasks: Tasks) -> None:
    """By what has come since the look before, and what waits."""
    tasks.come(9, 4000)
    tasks.come(8, 100)
    tasks.come(7, 1000)
    tasks.come(6, 50, done=False)
    assert tasks.look() == [7, 8, 9]
    assert tasks.look() == [6, 7, 8]


def test_one_that_waits_goes_before_one_that_is_busy(tasks: Tasks) -> None:
    """A single message that nobody fetches is what an operator looks for."""
    tasks.come(9, 1, done=False)
    for _ in range(2):
        for task in (5, 6, 7):
            tasks.come(task, 100_000)
        shown = tasks.look()
    assert 9 in shown


def test_one_that_holds_others_up_goes_before_all(tasks: Tasks) -> None:
    """Whatever else there is, and also when it has just been emptied."""
    for task in range(9):
        tasks.come(task, 100_000, done=False)
    tasks.look()
    assert tasks.look(urgent=[9], most=1) == [9]


def test_a_picture_stays_while_nobody_has_twice_as_much(tasks: Tasks) -> None:
    """Else 10,000 even tasks would change places at each look."""
    for task in (3, 4, 5):
        tasks.come(task, 1000)
    assert tasks.look() == [3, 4, 5]
    for task in range(10):
        tasks.come(task, 900 if task in {3, 4, 5} else 1000)
    assert tasks.look() == [3, 4, 5]
    tasks.come(9, 4000)
    for task in (3, 4, 5):
        tasks.come(task, 900)
    assert 9 in tasks.look()


def test_all_who_look_within_a_second_see_the_same(tasks: Tasks) -> None:
    """What came within milliseconds says little; but a task that is gone is not shown."""
    tasks.come(9, 1000)
    tasks.now -= 0.5
    assert tasks.look() == [0, 1, 2]
    del tasks.queues[1]
    tasks.now -= 1
    assert tasks.look() == [0, 2, 9]
