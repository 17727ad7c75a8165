"""The load of a local task: how full its receive queue is, in messages or in bytes."""

from __future__ import annotations

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


@pytest.mark.parametrize(
    ("payloads", "load"),
    [([b""] * 5, 0.5), ([b""] * 10, 1.0), ([b""] * 20, 1.0), ([b"x" * MIB], 0.5), ([b"x" * MIB] * 2, 1.0)],
)
def test_load_is_how_full_the_queue_is(payloads: list[bytes], load: float) -> None:
    """The fuller of the two counts, and 1 at most."""
    settings = WorkerSettings(
        worker_id="w", topology="t", receive_queue_messages=10, receive_queue_bytes=2 * MIB
    )
    queues = ReceiveQueues(
        settings,
        1,
        lambda _task, _done: None,
        lambda task: UnknownTaskError(str(task)),
        RejectionsWithoutTimers(),
    )
    queues.assign([1])
    assert queues.load(1) == 0.0
    queues.put(TaskGroup.of(1, payloads), Sender())
    assert queues.load(1) == load
