"""A task that moves between workers, and a subscription that follows it: no message is lost or reordered."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import Self

import pytest
from helpers.topology import (
    TOPOLOGY,
    Message,
    assign,
    collect,
    ledger,
    messages_of,
    numbered,
    numbers,
    status,
)
from helpers.traffic import client_of, deliver, senders

from tuplewire import Client, TaskMessageBatch
from tuplewire.errors import ClosedError, SupersededError
from tuplewire.processes.worker_processes import Endpoint, WorkerProcesses
from tuplewire_service.testing import eventually

MOVING, STEADY = 1, 2
SOURCES = (10, 11, 12)
_SECONDS = 60.0


class Workers:
    """Three workers, and the tasks that place() assigns to them."""

    def __init__(self, endpoints: list[Endpoint]) -> None:
        self.endpoints = endpoints
        self.versions = count(1)

    def place(self, tasks: Mapping[int, list[int]], told: list[Endpoint] | None = None) -> None:
        """Assign tasks to workers by index, and send the assignment to these workers; default: all."""
        named = {each: tasks.get(index, []) for index, each in enumerate(self.endpoints)}
        assign(self.endpoints if told is None else told, next(self.versions), named)

    def still(self) -> bool:
        """Return True if no move is in progress."""
        return not any(status(endpoint).moving_task_count for endpoint in self.endpoints)


@contextmanager
def three_workers(transport: str = "grpc") -> Iterator[Workers]:
    """Run three workers; afterwards, their ledgers are clean, and all exit with 0."""
    flags = [f"--transport={transport}", "--drain-seconds=1"]
    with WorkerProcesses(3, TOPOLOGY, flags=flags) as processes:
        yield Workers(processes.endpoints)
        for endpoint in processes.endpoints:
            eventually(lambda endpoint=endpoint: ledger(endpoint).pending == 0)  # type: ignore[misc]
            assert ledger(endpoint).balanced
            assert sum(ledger(endpoint).dropped.values()) == 0
        assert processes.stop() == [0, 0, 0]


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    """Run three workers for the tests that do not choose the transport."""
    with three_workers() as running:
        yield running


class Consumer:
    """Receives both tasks in a thread, with one subscription."""

    def __init__(self, client: Client) -> None:
        self.seen: dict[int, list[Message]] = {MOVING: [], STEADY: []}
        self._known: dict[int, set[Message]] = {MOVING: set(), STEADY: set()}
        self.redelivered = 0
        self.error: BaseException | None = None
        self.subscription = client.recv([MOVING, STEADY], timeout=_SECONDS)
        self.thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.subscription.close()
        self.thread.join(_SECONDS)

    def _run(self) -> None:
        try:
            for batch in self.subscription:
                self._take(batch)
        except ClosedError:
            pass
        except BaseException as error:  # noqa: BLE001 - the test reads it
            self.error = error

    def _take(self, batch: TaskMessageBatch) -> None:
        for group in batch.groups:
            self.redelivered += len(group) if group.redelivered else 0
            messages = [(group.source, payload) for payload in group.payloads()]
            known = self._known[group.task]
            self.seen[group.task] += [each for each in messages if not group.redelivered or each not in known]
            known.update(messages)

    def wait(self, task: int, messages: int, what: str) -> None:
        """Wait until this number of messages has arrived for a task."""

        def arrived() -> bool:
            assert self.error is None, self.error
            return len(self.seen[task]) >= messages

        eventually(arrived, _SECONDS, f"{what}, to task {task}")

    def check(self, sent: list[int]) -> None:
        """Check that every message arrived once, apart from marked copies, and in order."""
        for task, seen in self.seen.items():
            self.wait(task, sum(sent), "all messages")
            for source, total in zip(SOURCES, sent, strict=True):
                assert numbers(seen, source) == list(range(total)), f"task {task}, source {source}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moves", "overlapping", "seed", "transport"),
    [
        (12, 0, 1, "grpc"),
        pytest.param(12, 0, 2, "grpc", marks=pytest.mark.long),
        pytest.param(12, 0, 1, "zmq", marks=pytest.mark.long),
        *(pytest.param(10, 6, seed, "grpc", marks=pytest.mark.long) for seed in (4, 5)),
        pytest.param(10, 6, 3, "zmq", marks=pytest.mark.long),
        pytest.param(5, 6, 3, "zmq", marks=pytest.mark.part),
    ],
)
def test_a_task_moves_again_and_again_under_load(
    moves: int, overlapping: int, seed: int, transport: str
) -> None:
    """All messages arrive once, in order, while moves overlap. They may be marked if workers miss moves."""
    chance, owner = random.Random(seed), 0
    with three_workers(transport) as workers, client_of(workers.endpoints[2].address) as client:

        def move(told: list[Endpoint]) -> None:
            nonlocal owner
            owner = chance.choice([each for each in range(3) if each != owner])
            tasks = {0: [STEADY], owner: [MOVING] if owner else [STEADY, MOVING]}
            workers.place(tasks, chance.sample(told, len(told)))

        workers.place({0: [MOVING, STEADY]})
        with Consumer(client) as consumer:
            with senders(workers.endpoints, (MOVING, STEADY), SOURCES) as sent:
                for number in range(moves):
                    for _ in range(overlapping):
                        move([each for each in workers.endpoints if chance.random() < 0.7])
                    before = len(consumer.seen[MOVING])
                    move(workers.endpoints)
                    if number % 3 and not overlapping:
                        eventually(workers.still, _SECONDS)
                    consumer.wait(MOVING, before + 200, f"messages after move {number}")
            consumer.check(sent)
            assert overlapping or not consumer.redelivered
            eventually(workers.still, _SECONDS)


def test_unacknowledged_messages_wait_for_the_move(workers: Workers) -> None:
    """A batch that the program has not acknowledged before a move is not delivered again."""
    workers.place({0: [MOVING]})
    with client_of(workers.endpoints[2].address) as client:
        deliver(client, numbered(MOVING, range(5)))
        with client.recv([MOVING], timeout=_SECONDS) as subscription:
            first = next(subscription)
            workers.place({1: [MOVING]})
            client.send(numbered(MOVING, range(5, 10)))
            eventually(lambda: status(workers.endpoints[0]).moving_task_count > 0)
            rest = collect(subscription, 10 - len(first))
            assert numbers([*messages_of(first), *rest]) == list(range(10))
            assert not any(group.redelivered for group in first.groups)


def test_a_consumer_that_follows_takes_nothing_over(workers: Workers) -> None:
    """If another consumer is connected at the new owner, the older one gets SupersededError."""
    workers.place({0: [MOVING]})
    near, far, third = workers.endpoints
    with (
        client_of(third.address) as older,
        client_of(far.address) as newer,
        older.recv([MOVING], timeout=_SECONDS) as first,
    ):
        deliver(older, numbered(MOVING, range(5)))
        collect(first, 5)
        workers.place({1: [MOVING]}, [far])  # `far` already accepts consumers, `near` does not know yet
        with newer.recv([MOVING], timeout=_SECONDS, follow=False) as second:
            eventually(lambda: any(each.subscribed for each in status(far).tasks))
            workers.place({1: [MOVING]}, [near, far, third])
            with pytest.raises(SupersededError):
                next(first)
            deliver(newer, numbered(MOVING, range(5, 10)))
            assert numbers(collect(second, 5)) == list(range(5, 10))


def test_a_wrong_worker_at_the_address(workers: Workers) -> None:
    """A subscription waits while another worker answers at the owner's address, and continues after that."""
    near, far, third = workers.endpoints
    eventually(workers.still)  # during a move, `near` may serve the task, and can no longer reach its owner
    wrong = {(near.worker_id, near.address): [], (far.worker_id, third.address): [MOVING]}
    assign(near, next(workers.versions), wrong)
    with client_of(near.address) as client, client.recv([MOVING], timeout=_SECONDS) as subscription:
        eventually(lambda: "or the assignment a wrong address" in repr(subscription))
        workers.place({1: [MOVING]})
        client.send(numbered(MOVING, range(10)))
        assert numbers(collect(subscription, 10)) == list(range(10))
