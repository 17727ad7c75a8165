"""A worker returns memory that it no longer needs to the system."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import eventually
from helpers.memory import rss
from helpers.topology import TOPOLOGY, one_worker

from tuplewire import Client, TaskMessageBatch

BATCHES, MESSAGES = 600, 200
PAYLOAD = b"x" * 500
HELD_BYTES = BATCHES * MESSAGES * len(PAYLOAD)


@pytest.mark.slow
def test_a_queue_that_was_full_leaves_nothing_behind(tmp_path: Path) -> None:
    """After 57 MiB of queued messages are consumed, the worker is about as small as before."""
    with (
        one_worker("w", "--receive-queue-bytes=128MiB", directory=tmp_path, tasks=[0]) as worker,
        Client(worker.address, topology=TOPOLOGY) as client,
    ):
        before = rss(worker.process_id)
        for _ in range(BATCHES):
            client.send(TaskMessageBatch.from_columns(0, [PAYLOAD] * MESSAGES))
        client.flush(60)
        assert rss(worker.process_id) - before > HELD_BYTES, "it was held in memory"
        with client.recv([0], timeout=60) as batches:
            left = BATCHES * MESSAGES
            while left:
                left -= len(next(batches))
            batches.acknowledge()
        eventually(lambda: rss(worker.process_id) - before < HELD_BYTES // 3, 30)
