"""A task that moves between workers under load: no message is lost, duplicated or reordered."""

from __future__ import annotations

import random
import threading
from itertools import pairwise
from typing import Self

import pytest
from helpers.topology import TOPOLOGY, Message, assign, ledger, status
from helpers.traffic import senders

from tuplewire import Client, TaskMessageBatch
from tuplewire.errors import TaskNotLocalError, UnknownTaskError, UnreachableError
from tuplewire.processes.worker_processes import Endpoint, WorkerProcesses
from tuplewire_service.testing import eventually

MOVING, STEADY = 1, 2
SOURCES = (10, 11, 12)
MOVES = 12


class Consumers:
    """Consumers for every task at every worker; the consumer at the task's owner receives the messages."""

    def __init__(self, endpoints: list[Endpoint], tasks: tuple[int, ...]) -> None:
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self.seen: dict[int, list[Message]] = {task: [] for task in tasks}
        self._known: dict[int, set[Message]] = {task: set() for task in tasks}
        self._threads = [
            threading.Thread(target=self._consume, args=(endpoint, task), daemon=True)
            for endpoint in endpoints
            for task in tasks
        ]
        for thread in self._threads:
            thread.start()

    def _consume(self, endpoint: Endpoint, task: int) -> None:
        with Client(endpoint.address, topology=TOPOLOGY) as client:
            while not self._stop.wait(0.01):
                try:
                    with client.recv([task], timeout=3, follow=False) as subscription:
                        for batch in subscription:
                            self._take(task, batch)
                except (TaskNotLocalError, UnknownTaskError, UnreachableError, TimeoutError):
                    continue

    def _take(self, task: int, batch: TaskMessageBatch) -> None:
        """Record received messages, except redelivered copies of messages that are already recorded."""
        with self._lock:
            known = self._known[task]
            for group in batch.groups:
                messages = [(group.source, payload) for payload in group.payloads()]
                self.seen[task] += [each for each in messages if not group.redelivered or each not in known]
                known.update(messages)

    def count(self, task: int) -> int:
        """Return the number of messages received for a task."""
        with self._lock:
            return len(self.seen[task])

    def stop(self) -> None:
        """Stop all consumers."""
        self._stop.set()
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()


def explain(task: int, source: int, got: list[int], count: int) -> str:
    """Describe the errors in the numbers of one source: missing, duplicated and out of order."""
    jumps = [(before, after) for before, after in pairwise(got) if after != before + 1]
    missing = len(set(range(count)) - set(got))
    doubled = len(got) - len(set(got))
    return f"task {task}, source {source}: {missing} missing, {doubled} doubled, jumps {jumps[:8]}"


class Workers:
    """Three workers with consumers for both tasks, and a method that places the moving task."""

    def __init__(self, seed: int, transport: str) -> None:
        self.chance = random.Random(seed)
        self._workers = WorkerProcesses(3, TOPOLOGY, flags=[f"--transport={transport}"])
        self._version = 0

    def __enter__(self) -> Self:
        self._workers.start()
        self.endpoints = list(self._workers.endpoints)
        self.place(0, self.endpoints)
        self.consumers = Consumers(self.endpoints, (MOVING, STEADY))
        return self

    def __exit__(self, *_: object) -> None:
        self._workers.stop()

    def other_than(self, owner: int) -> int:
        """Return a random worker other than the owner."""
        return self.chance.choice([index for index in range(3) if index != owner])

    def place(self, owner: int, told: list[Endpoint]) -> None:
        """Assign the moving task to a worker, and send the assignment to these workers in random order."""
        self._version += 1
        tasks = [[STEADY] if index == 0 else [] for index in range(3)]
        tasks[owner].append(MOVING)
        named = dict(zip(self.endpoints, tasks, strict=True))
        assign(self.chance.sample(told, len(told)), self._version, named)

    def still(self) -> bool:
        """Return True if no move is in progress."""
        return not any(status(endpoint).moving_tasks for endpoint in self.endpoints)

    def check(self, sent: list[int]) -> None:
        """Check that all messages arrived once and in order, and that every ledger agrees."""
        for task in (MOVING, STEADY):
            eventually(
                lambda task=task: self.consumers.count(task) >= sum(sent),  # type: ignore[misc]
                timeout=30,
                what=f"every message to task {task}",
            )
        eventually(self.still, timeout=20)
        self.consumers.stop()
        for task in (MOVING, STEADY):
            for source, count in zip(SOURCES, sent, strict=True):
                got = [int(payload) for sender, payload in self.consumers.seen[task] if sender == source]
                assert got == list(range(count)), explain(task, source, got, count)
        for endpoint in self.endpoints:
            eventually(lambda endpoint=endpoint: ledger(endpoint).pending == 0)  # type: ignore[misc]
            assert ledger(endpoint).balanced
            assert sum(ledger(endpoint).dropped.values()) == 0
        assert self._workers.stop() == [0, 0, 0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overlapping", "seed", "transport"),
    [
        (0, 1, "grpc"),
        pytest.param(0, 2, "grpc", marks=pytest.mark.long),
        (0, 1, "zmq"),
        (6, 3, "grpc"),
        *(pytest.param(6, seed, "grpc", marks=pytest.mark.long) for seed in (4, 5)),
        (6, 3, "zmq"),
    ],
)
def test_a_task_moves_again_and_again_under_load(overlapping: int, seed: int, transport: str) -> None:
    """Moves reach the workers one at a time, in random order; all messages arrive once, in order.

    Before each move that all workers learn of, there may be `overlapping` moves that some workers miss.
    """
    with Workers(seed, transport) as workers:
        owner = 0
        with senders(workers.endpoints, (MOVING, STEADY), SOURCES) as sent:
            for number in range(10 if overlapping else MOVES):
                for _ in range(overlapping):
                    owner = workers.other_than(owner)
                    workers.place(owner, [e for e in workers.endpoints if workers.chance.random() < 0.7])
                owner = workers.other_than(owner)
                before = workers.consumers.count(MOVING)
                workers.place(owner, workers.endpoints)
                if not overlapping:
                    eventually(workers.still, timeout=20)
                eventually(
                    lambda before=before: workers.consumers.count(MOVING) > before + 200,  # type: ignore[misc]
                    timeout=20,
                    what=f"messages after move {number}",
                )
        workers.check(sent)
