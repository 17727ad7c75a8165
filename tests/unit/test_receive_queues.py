"""The load of a local task: how full its receive queue is, in messages or in bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from helpers.rejecting import RejectionsWithoutTimers

from tuplewire.config import MIB
from tuplewire.errors import UnknownTaskError
from tuplewire.group import TaskGroup
from tuplewire_service.worker.receive_queues import ReceiveQueues
from tuplewire_service.worker.worker_settings import WorkerSettings


class Sender:
    """Where the messages came from; nobody waits for them."""

    source = sender_id = "test"
    wants_releases = False
    worker_number = 0

    def release(self, task: int, messages: int, size_bytes: int) -> None:
        """Do nothing."""


def queues_of(tasks: Iterable[int], **settings: Any) -> ReceiveQueues:
    """Return the queues of tasks that have just come to a worker."""
    queues = ReceiveQueues(
        WorkerSettings(worker_id="w", topology="t", **settings),
        1,
        lambda _task, _done: None,
        lambda task: UnknownTaskError(str(task)),
        RejectionsWithoutTimers(),
    )
    queues.assign(tasks)
    return queues


@pytest.mark.parametrize(
    ("payloads", "load"),
    [([b""] * 5, 0.5), ([b""] * 10, 1.0), ([b""] * 20, 1.0), ([b"x" * MIB], 0.5), ([b"x" * MIB] * 2, 1.0)],
)
def test_load_is_how_full_the_queue_is(payloads: list[bytes], load: float) -> None:
    """The fuller of the two counts, and 1 at most."""
    queues = queues_of([1], receive_queue_messages=10, receive_queue_bytes=2 * MIB)
    assert queues.load(1) == 0.0
    queues.put(TaskGroup.of(1, payloads), Sender())
    assert queues.load(1) == load


def test_the_tasks_that_matter_most() -> None:
    """First those that hold others up, then those with most unacknowledged messages, then by number."""
    queues = queues_of(range(3000))
    for task, messages in ((2500, 3), (7, 2), (2999, 1)):
        queues.put(TaskGroup.of(task, [b""] * messages), Sender())
    for most, chosen in ((1, [1500]), (3, [7, 1500, 2500]), (6, [0, 1, 7, 1500, 2500, 2999])):
        assert asyncio.run(queues.shown({1500}, most)) == chosen
    assert asyncio.run(queues.shown((), 10_000)) == list(range(3000))
