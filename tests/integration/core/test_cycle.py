"""Slow and stopped tasks: only their own messages stop, and a cycle of tasks makes progress or fails."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from typing import Any, Self

import pytest
from helpers.program import Program
from helpers.streams import Consumed, Sequences, consumer, numbered_group
from helpers.topology import TOPOLOGY, Pair, ledger, pair_of_workers, queued

from tuplewire import Client, TaskGroup, TaskMessageBatch
from tuplewire.errors import BufferFullError, UnreachableError
from tuplewire_service.testing import eventually

ROOM = 64
"""The capacity of a task's queue, and of each client's buffer, in messages."""
TIGHT: dict[str, Any] = {
    "max_pending_messages": ROOM,
    "max_pending_task_messages": ROOM,
    "max_block_seconds": 1,
}
SLOW_SECONDS = 0.002
"""The time that a task takes for a batch."""
_MESSAGE = struct.Struct("<II")


@pytest.fixture(scope="module", params=["grpc", pytest.param("zmq", marks=pytest.mark.long)])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Run two workers with tiny queues."""
    with pair_of_workers(f"--receive-queue-messages={ROOM}", f"--transport={request.param}") as pair:
        yield pair


def messages(task: int, numbers_and_hops: list[tuple[int, int]]) -> TaskMessageBatch:
    """Return one message for each pair of a number and its remaining hops."""
    return TaskMessageBatch.from_groups(
        [TaskGroup.of(task, [_MESSAGE.pack(*each) for each in numbers_and_hops])]
    )


class Task:
    """A task in its own thread. For each message that it receives, it sends one to the other task."""

    def __init__(self, address: str, task: int, other: int, **settings: Any) -> None:
        self.finished: list[int] = []
        """The numbers of messages that have made all their hops."""
        self.given_up: list[int] = []
        """The numbers of messages that were dropped because the buffer was full."""
        self.errors: list[BufferFullError] = []
        self._client = Client(address, topology=TOPOLOGY, **{**TIGHT, **settings})
        self._batches = self._client.recv([task], timeout=0.2)
        self._other = other
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"task {task}")

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                batch = next(self._batches)
            except (TimeoutError, UnreachableError):
                continue  # a busy machine may take longer than the timeout to connect
            self._stop.wait(SLOW_SECONDS)
            came = [_MESSAGE.unpack(message.message) for message in batch]
            self.finished += [number for number, hops in came if not hops]
            onward = [(number, hops - 1) for number, hops in came if hops]
            for start in range(0, len(onward), ROOM // 4):
                self._pass_on(onward[start : start + ROOM // 4])

    def _pass_on(self, onward: list[tuple[int, int]]) -> None:
        try:
            self._client.send(messages(self._other, onward))
        except BufferFullError as error:
            self.errors.append(error)
            self.given_up += [number for number, _ in onward]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)
        assert not self._thread.is_alive(), "a task hangs"
        self._client.close(10)
        assert self._client.ledger().balanced


def test_cycle_that_has_room_makes_progress(pair: Pair) -> None:
    """If all messages fit, each one makes all its hops exactly once, and no send fails."""
    a, b = pair.near_task(), pair.far_task()
    with (
        Task(pair.near.address, a, b) as near,
        Task(pair.far.address, b, a) as far,
        Client(pair.near.address, topology=TOPOLOGY) as seeding,
    ):
        seeding.send(messages(a, [(number, 100) for number in range(ROOM // 2)]))
        eventually(lambda: len(near.finished) == ROOM // 2, 60, "all hops made")
        assert sorted(near.finished) == list(range(ROOM // 2))
        assert near.errors + far.errors == []


def test_cycle_without_room_gets_an_error_and_goes_on(pair: Pair) -> None:
    """If the messages do not fit, a send raises an error; dropping its messages makes space for the rest."""
    a, b = pair.near_task(), pair.far_task()
    seeded = 0
    with (
        Task(pair.near.address, a, b, max_block_seconds=0.2) as near,
        Task(pair.far.address, b, a, max_block_seconds=0.2) as far,
        Client(pair.near.address, topology=TOPOLOGY, **TIGHT) as seeding,
    ):

        def overfilled() -> bool:
            nonlocal seeded
            if seeding.try_send(messages(a, [(number, 100) for number in range(seeded, seeded + 10)])):
                seeded += 10
            return bool(near.errors or far.errors)

        eventually(overfilled, 60, "an error for want of room")
        assert "no space for 0.2 s" in str((near.errors + far.errors)[0])
        ended = (near.finished, near.given_up, far.finished, far.given_up)
        eventually(lambda: sum(map(len, ended)) == seeded, 90, "all finished or given up")
        assert sorted(number for each in ended for number in each) == list(range(seeded))
        assert near.finished


RUNNING = 31
MESSAGES = 20_000
"""Number of messages for each running task: forty times the capacity of its queue."""
BATCH = 500
QUEUE = 500
SOURCE = 7


@pytest.fixture(params=["grpc", "zmq"])
def small(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Run two workers with small queues."""
    flags = (f"--receive-queue-messages={QUEUE}", "--receive-queue-bytes=1MiB")
    with pair_of_workers(*flags, f"--transport={request.param}") as small:
        yield small


def _to(task: int, first: int) -> TaskMessageBatch:
    return TaskMessageBatch.from_groups([numbered_group(task, SOURCE, first, BATCH)])


@pytest.mark.slow
def test_one_stopped_task_of_32_leaves_31_alone(small: Pair) -> None:
    """With one task full, the others receive all of their messages; later it receives all of its own."""
    stopped = small.far_task()
    running = [small.far_task() for _ in range(RUNNING)]
    with (
        Client(
            small.near.address, topology=TOPOLOGY, max_pending_messages=50_000, max_pending_task_messages=1000
        ) as sender,
        Program(consumer, TOPOLOGY, [(small.far.address, running)]) as consuming,
    ):
        sent = 0  # to the stopped task; the other tasks are sent nothing before it is full

        def full() -> bool:
            nonlocal sent
            # Check this first: later acknowledgements still free space.
            arrived = queued(small.far, stopped) == QUEUE == sender.ledger().acknowledged
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
        assert queued(small.far, stopped) == QUEUE

        sequences = Sequences()
        with Client(small.far.address, topology=TOPOLOGY).recv([stopped], timeout=20) as subscription:
            while sequences.next.get((SOURCE, stopped), 0) < sent:
                for group in next(subscription).groups:
                    sequences.take(group)
        assert sequences.problems == []
        assert sequences.next == {(SOURCE, stopped): sent}
        sender.flush(20)
        assert sender.ledger().acknowledged == sent + RUNNING * MESSAGES
    assert ledger(small.near).balanced


def _seen(consuming: Program) -> Consumed:
    consumed: Consumed = consuming.ask("progress")
    return consumed
