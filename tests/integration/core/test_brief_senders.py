"""Short-lived senders, such as PySpark tasks, that each fill their share: a queue keeps its limit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from helpers import eventually
from helpers.streams import Sequences, numbered_group
from helpers.topology import TOPOLOGY, Pair, ledger, pair_of_workers, queued

from tuplewire import Client, TaskMessageBatch
from tuplewire.errors import FlushTimeoutError

QUEUE = 1000
BATCH = 250
SENDERS = 20
SOURCE = 7


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Run two workers with small queues."""
    with pair_of_workers(f"--receive-queue-messages={QUEUE}", "--receive-queue-bytes=1MiB") as pair:
        yield pair


@pytest.mark.parametrize("hops", [1, 2])
def test_a_queue_keeps_its_bound(pair: Pair, hops: int) -> None:
    """Each sender leaves its messages in the queue until it is full; the next sender waits for space."""
    task = pair.far_task()
    entrance = pair.far if hops == 1 else pair.near
    sent = 0
    waiting = None
    for _ in range(SENDERS):
        client = Client(entrance.address, topology=TOPOLOGY)
        client.send(TaskMessageBatch.from_groups([numbered_group(task, SOURCE, sent, BATCH)]))
        sent += BATCH
        # The short flush timeout is not critical: a full queue blocks the next sender in any case.
        eventually(lambda: not client.ledger().pending or queued(pair.far, task) >= QUEUE)  # noqa: B023
        try:
            client.flush(1)
        except FlushTimeoutError:
            waiting = client
            break
        client.close()
    assert waiting is not None, "nobody was held back"
    assert QUEUE <= queued(pair.far, task) <= QUEUE * 5 // 4
    sequences = Sequences()
    with Client(pair.far.address, topology=TOPOLOGY).recv([task], timeout=20) as subscription:
        while sequences.next.get((SOURCE, task), 0) < sent:
            for group in next(subscription).groups:
                sequences.take(group)
    assert sequences.problems == []
    waiting.flush(20)
    waiting.close()
    assert ledger(entrance).accepted == sent
    assert ledger(entrance).balanced
