"""Two slow tasks that send to each other with small buffers make progress or get an error, without a hang."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from typing import Any, Self

import pytest
from helpers.topology import TOPOLOGY, Pair, pair_of_workers

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
        assert "no room for 0.2 s" in str((near.errors + far.errors)[0])
        ended = (near.finished, near.given_up, far.finished, far.given_up)
        eventually(lambda: sum(map(len, ended)) == seeded, 90, "all finished or given up")
        assert sorted(number for each in ended for number in each) == list(range(seeded))
        assert near.finished
