"""Subscriptions that find the workers of their tasks and follow them, with three real workers."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path

import pytest
from helpers.certificates import Authority
from helpers.secured import files_of, guarded, tls_flags
from helpers.topology import (
    TOPOLOGY,
    Message,
    Pair,
    acknowledged,
    assign,
    collect,
    ledger,
    messages_of,
    numbered,
    numbers,
    one_worker,
    status,
)
from helpers.traffic import client_of, deliver, senders
from helpers.worker_process import run_command

from tuplewire import Client, TaskMessageBatch, aio
from tuplewire.connection.grpc_channel import OtherWorkers
from tuplewire.errors import PermissionDeniedError, SupersededError, UnknownTaskError
from tuplewire.processes.worker_processes import Endpoint, WorkerProcesses
from tuplewire_service.testing import eventually
from tuplewire_service.testing.fault_proxy import FaultProxy

MOVING, STEADY = 1, 2
SOURCES = (10, 11, 12)
RULES = """
[[client]]
tokens = ["operator"]
send = "*"
control = ["assign"]

[[client]]
tokens = ["reader"]
receive = "1"
"""
_SECONDS = 60.0


class Workers:
    """Three workers; the third one owns no task unless place() assigns one to it."""

    def __init__(self, endpoints: list[Endpoint]) -> None:
        self.endpoints = endpoints
        self._versions = count(1)

    def place(self, tasks: Mapping[int, list[int]], told: list[Endpoint] | None = None) -> None:
        """Assign tasks to workers by index, and send the assignment to these workers; default: all."""
        named = {each: tasks.get(index, []) for index, each in enumerate(self.endpoints)}
        assign(self.endpoints if told is None else told, next(self._versions), named)

    def still(self) -> bool:
        """Return True if no move is in progress."""
        return not any(status(endpoint).moving_tasks for endpoint in self.endpoints)


@pytest.fixture
def three_workers() -> Iterator[Workers]:
    """Run three workers; all must exit with 0."""
    with WorkerProcesses(3, TOPOLOGY, flags=["--drain-seconds=1"]) as processes:
        yield Workers(processes.endpoints)
        assert processes.stop() == [0, 0, 0]


class Consumer:
    """Receives both tasks in a thread, with one subscription."""

    def __init__(self, client: Client) -> None:
        self.seen: dict[int, list[Message]] = {MOVING: [], STEADY: []}
        self.redelivered = 0
        self.error: BaseException | None = None
        self.subscription = client.recv([MOVING, STEADY], timeout=_SECONDS)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            for batch in self.subscription:
                self._take(batch)
        except BaseException as error:  # noqa: BLE001 - the test reads it
            self.error = error

    def _take(self, batch: TaskMessageBatch) -> None:
        for group in batch.groups:
            self.redelivered += len(group) if group.redelivered else 0
            self.seen[group.task] += [(group.source, payload) for payload in group.payloads()]

    def has(self, task: int, messages: int) -> Callable[[], bool]:
        """Return a function that returns True once this number of messages has arrived for a task."""

        def arrived() -> bool:
            assert self.error is None, self.error
            return len(self.seen[task]) >= messages

        return arrived

    def check(self, sent: list[int]) -> None:
        """Check that every message arrived once, in order, and unmarked."""
        for task, seen in self.seen.items():
            eventually(self.has(task, sum(sent)), _SECONDS, f"all messages to task {task}")
            for source, total in zip(SOURCES, sent, strict=True):
                assert numbers(seen, source) == list(range(total)), f"task {task}, source {source}"
        assert self.redelivered == 0


def test_a_task_of_another_worker(pair: Pair) -> None:
    """recv() reaches a task of another worker; the owner's session has the consumer's acknowledgements."""
    task = pair.far_task()
    with client_of(pair.near.address) as client:
        deliver(client, numbered(task, range(100)))
        with client.recv([task], timeout=_SECONDS) as subscription:
            assert numbers(collect(subscription, 100)) == list(range(100))
        eventually(lambda: acknowledged(pair.far, task) == 100)


def test_tasks_of_two_workers(pair: Pair) -> None:
    """One subscription has tasks of both workers; each gets its own acknowledgements and rejections."""
    near, far = pair.near_task(), pair.far_task()
    with client_of(pair.near.address) as client:
        deliver(client, numbered(near, range(50)))
        deliver(client, numbered(far, range(50)))
        with client.recv([near, far], timeout=_SECONDS) as subscription:
            found: list[Message] = []
            bad = {near, far}
            while len(found) < 102:
                batch = next(subscription)
                for index, message in enumerate(batch):
                    if message.message == b"7" and message.task in bad:
                        subscription.reject(index)
                        bad.remove(message.task)
                found += [(message.task, message.message) for message in batch]
            subscription.acknowledge()
        for task in (near, far):
            rest = [number for number in numbers(found, task) if number != 7]
            assert rest == [number for number in range(50) if number != 7]
            assert numbers(found, task).count(7) == 2


async def test_the_asyncio_client_receives_from_anywhere(pair: Pair) -> None:
    """aio.Client finds the owners too."""
    tasks = [pair.near_task(), pair.far_task()]
    async with aio.Client(pair.near.address, topology=TOPOLOGY) as client:
        for task in tasks:
            await client.send(numbered(task, range(10)))
        async with client.recv(tasks, timeout=_SECONDS) as subscription:
            found = [(each.task, each.message) async for each in subscription.messages(20)]
    assert [numbers(found, task) for task in tasks] == [list(range(10))] * 2


def test_local_tasks_request_no_assignment(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """While all tasks are at the client's worker, the client requests nothing else from any worker."""
    asked: list[str] = []
    monkeypatch.setattr(OtherWorkers, "assignment", lambda _, address: asked.append(address))
    task = pair.near_task()
    with client_of(pair.near.address) as client, client.recv([task], timeout=_SECONDS) as subscription:
        deliver(client, numbered(task, range(10)))
        collect(subscription, 10)
    assert asked == []


def test_an_unknown_task_is_an_error(pair: Pair) -> None:
    """A task that no worker owns is an error, not a wait."""
    with (
        client_of(pair.near.address) as client,
        client.recv([pair.near_task(), 5000], timeout=_SECONDS) as subscription,
        pytest.raises(UnknownTaskError, match="task 5000 is not in assignment version"),
    ):
        next(subscription)


@pytest.mark.slow
def test_tasks_move_back_to_back_under_load(three_workers: Workers) -> None:
    """No message is lost, duplicated, reordered or marked, although workers learn of moves in any order."""
    chance = random.Random(1)
    owner = 0
    three_workers.place({0: [MOVING, STEADY]})
    with client_of(three_workers.endpoints[2].address) as client:
        consumer = Consumer(client)
        with senders(three_workers.endpoints, (MOVING, STEADY), SOURCES) as sent:
            for number in range(12):
                before = len(consumer.seen[MOVING])
                owner = chance.choice([each for each in range(3) if each != owner])
                told = chance.sample(three_workers.endpoints, 3)
                three_workers.place({0: [STEADY], owner: [MOVING] if owner else [STEADY, MOVING]}, told)
                if number % 3:
                    eventually(three_workers.still, _SECONDS)
                eventually(consumer.has(MOVING, before + 200), _SECONDS, f"messages after move {number}")
        consumer.check(sent)
        eventually(three_workers.still, _SECONDS)
        consumer.subscription.close()
    for endpoint in three_workers.endpoints:
        eventually(lambda endpoint=endpoint: ledger(endpoint).pending == 0)  # type: ignore[misc]


def test_a_task_joins_the_stream_of_another_task(three_workers: Workers) -> None:
    """A task moves to a worker that the subscription has a stream to, and back; the other task continues."""
    three_workers.place({0: [MOVING], 1: [STEADY]})
    with client_of(three_workers.endpoints[2].address) as client:
        consumer = Consumer(client)
        for number in range(6):
            for task in (MOVING, STEADY):
                client.send(numbered(task, range(10 * number, 10 * number + 10), SOURCES[0]))
                eventually(consumer.has(task, 10 * number + 10), _SECONDS, f"messages to task {task}")
            three_workers.place({1: [MOVING, STEADY]} if number % 2 == 0 else {0: [MOVING], 1: [STEADY]})
        consumer.check([60, 0, 0])


def test_unacknowledged_messages_wait_for_the_move(three_workers: Workers) -> None:
    """A batch that the program has not acknowledged before a move is not delivered again."""
    three_workers.place({0: [MOVING]})
    with client_of(three_workers.endpoints[2].address) as client:
        deliver(client, numbered(MOVING, range(5)))
        with client.recv([MOVING], timeout=_SECONDS) as subscription:
            first = next(subscription)
            three_workers.place({1: [MOVING]})
            client.send(numbered(MOVING, range(5, 10)))
            eventually(lambda: status(three_workers.endpoints[0]).moving_tasks > 0)
            rest = collect(subscription, 10 - len(first))
            assert numbers([*messages_of(first), *rest]) == list(range(10))
            assert not any(group.redelivered for group in first.groups)


def test_a_broken_connection_has_no_effect(three_workers: Workers) -> None:
    """A connection to the own worker that breaks repeatedly neither loses nor duplicates messages."""
    three_workers.place({0: [MOVING], 2: [STEADY]})
    with FaultProxy(three_workers.endpoints[2].address) as proxy, client_of(proxy.address) as client:
        consumer = Consumer(client)
        with senders(three_workers.endpoints, (MOVING, STEADY), SOURCES) as sent:
            for number in range(5):
                before = len(consumer.seen[STEADY])
                proxy.cut()
                eventually(consumer.has(STEADY, before + 200), _SECONDS, f"messages after break {number}")
        consumer.check(sent)


def test_a_consumer_that_follows_takes_nothing_over(three_workers: Workers) -> None:
    """If another consumer is connected at the new owner, the older one gets SupersededError."""
    three_workers.place({0: [MOVING]})
    near, far, third = three_workers.endpoints
    with (
        client_of(third.address) as older,
        client_of(far.address) as newer,
        older.recv([MOVING], timeout=_SECONDS) as first,
    ):
        deliver(older, numbered(MOVING, range(5)))
        collect(first, 5)
        three_workers.place({1: [MOVING]}, [far])  # `far` already accepts consumers, `near` does not know yet
        with newer.recv([MOVING], timeout=_SECONDS, follow=False) as second:
            eventually(lambda: any(each.subscribed for each in status(far).tasks))
            three_workers.place({1: [MOVING]}, [near, far, third])
            with pytest.raises(SupersededError):
                next(first)
            deliver(newer, numbered(MOVING, range(5, 10)))
            assert numbers(collect(second, 5)) == list(range(5, 10))


def test_the_owner_dies(tmp_path: Path) -> None:
    """After the task is assigned to another worker, the subscription receives everything there."""
    with (
        one_worker("a", directory=tmp_path) as a,
        one_worker("b", directory=tmp_path) as b,
        one_worker("c", directory=tmp_path) as c,
    ):
        assign((a, b, c), 1, {a: [], b: [MOVING], c: []})
        with (
            client_of(a.address, ack_mode="processed") as sender,
            client_of(a.address) as client,
            client.recv([MOVING], timeout=_SECONDS) as subscription,
        ):
            sender.send(numbered(MOVING, range(10)))
            assert numbers(collect(subscription, 10)) == list(range(10))
            sender.flush(_SECONDS)
            os.kill(b.process_id, signal.SIGKILL)
            sender.send(numbered(MOVING, range(10, 20)))
            assign((a, c), 2, {a: [], c: [MOVING]})
            assert numbers(collect(subscription, 10)) == list(range(10, 20))


def test_a_wrong_worker_at_the_address(three_workers: Workers) -> None:
    """A subscription waits while another worker answers at the owner's address, and continues after that."""
    near, far, third = three_workers.endpoints
    assign(near, 1, {(near.worker_id, near.address): [], (far.worker_id, third.address): [MOVING]})
    with client_of(near.address) as client, client.recv([MOVING], timeout=_SECONDS) as subscription:
        eventually(lambda: "or the assignment a wrong address" in repr(subscription))
        assign(three_workers.endpoints, 2, {near: [], far: [MOVING], third: []})
        client.send(numbered(MOVING, range(10)))
        assert numbers(collect(subscription, 10)) == list(range(10))


def test_permission_is_needed(tmp_path: Path) -> None:
    """Without the permission `receive`, the subscription fails; it needs no other permission."""
    with guarded(tmp_path, RULES, "operator", "reader") as (processes, credentials):
        processes.assign({0: [1, 2]})
        address = processes.endpoints[0].address
        with client_of(address, credentials=credentials["operator"]) as sender:
            deliver(sender, numbered(1, range(5)))
        with client_of(address, credentials=credentials["reader"]) as client:
            with client.recv([1], timeout=_SECONDS) as subscription:
                assert numbers(collect(subscription, 5)) == list(range(5))
            with pytest.raises(PermissionDeniedError), client.recv([2], timeout=_SECONDS) as subscription:
                next(subscription)


def test_over_tls_with_the_clients_credentials(tmp_path: Path) -> None:
    """The streams to other workers, and the requests of the assignment, use the client's certificate."""
    authority = Authority()
    files = authority.issue("worker.example").write(tmp_path / "worker")
    program = files_of(authority.issue("etl.example"), tmp_path / "program", "worker.example")
    flags = [*tls_flags(files), "--tls-client-names=*.example", "--drain-seconds=1"]
    with WorkerProcesses(2, TOPOLOGY, flags=flags, directory=tmp_path, credentials=program) as processes:
        processes.assign({0: [1], 1: [2]}, _SECONDS)
        with client_of(processes.endpoints[0].address, credentials=program) as client:
            for task in (1, 2):
                deliver(client, numbered(task, range(10), source=task))
            with client.recv([1, 2], timeout=_SECONDS) as subscription:
                found = collect(subscription, 20)
                assert [numbers(found, task) for task in (1, 2)] == [list(range(10))] * 2
                processes.assign({0: [1, 2]}, _SECONDS)
                client.send(numbered(2, range(10, 20), source=2))
                assert numbers(collect(subscription, 10), 2) == list(range(10, 20))


def test_the_command_receives_from_anywhere(pair: Pair) -> None:
    """`tuplewire recv` prints the messages of another worker's task."""
    task = pair.far_task()
    with client_of(pair.near.address) as client:
        deliver(client, numbered(task, range(3)))
    about = ("--address", pair.near.address, "--topology", TOPOLOGY)
    ran = run_command("recv", str(task), "--count", "3", *about)
    assert ran.stdout.split() == ["0", "1", "2"], ran.stderr
