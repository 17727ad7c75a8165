"""One of 32 tasks has no consumer, on one connection through two workers: only that task stops."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from helpers.program import Program
from helpers.streams import Consumed, Sequences, consumer, numbered_group
from helpers.topology import TOPOLOGY, Pair, ledger, pair_of_workers, queued

from tuplewire import Client, TaskMessageBatch
from tuplewire_service.testing import eventually

RUNNING = 31
MESSAGES = 20_000
"""Number of messages for each running task: forty times the capacity of its queue."""
BATCH = 500
QUEUE = 500
SOURCE = 7


@pytest.fixture(params=["grpc", "zmq"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Run two workers with small queues."""
    flags = (f"--receive-queue-messages={QUEUE}", "--receive-queue-bytes=1MiB")
    with pair_of_workers(*flags, f"--transport={request.param}") as pair:
        yield pair


def _to(task: int, first: int) -> TaskMessageBatch:
    return TaskMessageBatch.from_groups([numbered_group(task, SOURCE, first, BATCH)])


@pytest.mark.slow
def test_one_stopped_task_of_32_leaves_31_alone(pair: Pair) -> None:
    """With one task full, the others receive all of their messages; later it receives all of its own."""
    stopped = pair.far_task()
    running = [pair.far_task() for _ in range(RUNNING)]
    with (
        Client(
            pair.near.address, topology=TOPOLOGY, max_pending_messages=50_000, max_pending_task_messages=1000
        ) as sender,
        Program(consumer, TOPOLOGY, [(pair.far.address, running)]) as consuming,
    ):
        sent = 0  # to the stopped task; the other tasks are sent nothing before it is full

        def full() -> bool:
            nonlocal sent
            # Check this first: later acknowledgements still free space.
            arrived = queued(pair.far, stopped) == QUEUE == sender.ledger().acknowledged
            while sender.try_send(_to(stopped, sent)):
                sent += BATCH
            return arrived

        eventually(full, 20, "the stopped task is full")
        for first in range(0, MESSAGES, BATCH):
            for task in running:
                sender.send(_to(task, first), timeout=30)
        assert not sender.try_send(_to(stopped, sent))
        everything = {(SOURCE, task): MESSAGES for task in running}
        eventually(lambda: _seen(consuming).received == everything, 60, "all that was sent to the others")
        assert _seen(consuming).problems == []
        assert queued(pair.far, stopped) == QUEUE

        sequences = Sequences()
        with Client(pair.far.address, topology=TOPOLOGY).recv([stopped], timeout=20) as subscription:
            while sequences.next.get((SOURCE, stopped), 0) < sent:
                for group in next(subscription).groups:
                    sequences.take(group)
        assert sequences.problems == []
        assert sequences.next == {(SOURCE, stopped): sent}
        sender.flush(20)
        assert sender.ledger().acknowledged == sent + RUNNING * MESSAGES
    assert ledger(pair.near).balanced


def _seen(consuming: Program) -> Consumed:
    consumed: Consumed = consuming.ask("progress")
    return consumed
