"""Keys, headers and sending times stay with messages across workers, reconnects, moves and drains."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from helpers.topology import TOPOLOGY, acknowledged, balances, one_worker, queued, two_workers
from helpers.traffic import client_of, deliver

from tuplewire import TaskGroup, TaskMessage, TaskMessageBatch, aio
from tuplewire.errors import MalformedError
from tuplewire.processes.worker_processes import Endpoint, WorkerProcesses
from tuplewire.subscription import Subscription
from tuplewire_service.testing import eventually

TRACE = [
    ("traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
    ("tracestate", b"congo=t61rcWkgMzE,rojo=00f067aa0ba902b7"),
]


def messages_to(task: int, count: int) -> list[TaskMessage]:
    """Return numbered messages in every form: with a key, headers, both, or neither."""
    keys = (None, b"key", None, b"")
    headers: tuple[list[tuple[str, bytes]], ...] = ([], [], TRACE, [("n", b"1"), ("n", b"2")])
    return [
        TaskMessage(task, b"%d" % number, key=keys[number % 4], headers=headers[number % 4])
        for number in range(count)
    ]


def collect(subscription: Subscription, count: int) -> list[TaskMessage]:
    """Take `count` messages and acknowledge them."""
    found: list[TaskMessage] = []
    while len(found) < count:
        found += next(subscription)
    subscription.acknowledge()
    return found


@pytest.mark.parametrize("transport", ["grpc", "zmq"])
def test_they_cross_two_workers_and_broken_connections(tmp_path: Path, transport: str) -> None:
    """Messages with and without headers, sent singly and in batches by both clients, arrive in order."""
    messages = messages_to(1, 1200)

    async def send_some(address: str) -> None:
        async with aio.Client(address, topology=TOPOLOGY) as client:
            for each in messages[800:1000]:
                await client.send(each.task, each.message, key=each.key, headers=each.headers)
            for each in messages[1000:1200]:
                assert client.try_send(each.task, each.message, key=each.key, headers=each.headers)

    with (
        two_workers(tmp_path, transport) as (a, b, proxy),
        client_of(a.address) as sender,
        client_of(b.address) as consumer,
        consumer.recv([1], timeout=30) as subscription,
    ):
        for start in range(0, 400, 40):
            sender.send(messages[start : start + 40])
            proxy.cut()
        for each in messages[400:600]:
            sender.send(each.task, each.message, key=each.key, headers=each.headers)
        proxy.cut()
        for each in messages[600:800]:
            assert sender.try_send(each.task, each.message, key=each.key, headers=each.headers)
        sender.flush(30)
        asyncio.run(send_some(a.address))
        assert collect(subscription, len(messages)) == messages
        balances(sender, sent=800)


def test_unread_bytes_reach_the_consumer_as_they_are(tmp_path: Path) -> None:
    """A worker forwards malformed header bytes unread; the consumer gets the error when it reads them."""
    with (
        one_worker("a", directory=tmp_path, tasks=[1]) as a,
        client_of(a.address) as client,
        client.recv([1], timeout=10) as subscription,
    ):
        client.send(TaskMessageBatch.from_groups([TaskGroup.joined(1, None, [b"x"], [b"\xff\xff"])]))
        (message,) = next(subscription)
        assert message.message == b"x"
        with pytest.raises(MalformedError, match="fix the program that sent the message"):
            _ = message.headers


TASK = 1


def now() -> int:
    """Return the current time in whole milliseconds, like the reported times."""
    return time.time_ns() // 1_000_000


def times(endpoint: Endpoint, count: int) -> dict[bytes, int]:
    """Return the sending time of each message, as reported to a consumer that acknowledges nothing."""
    found: dict[bytes, int] = {}
    with client_of(endpoint.address) as client, client.recv([TASK], timeout=20) as batches:
        while len(found) < count:
            for group in next(batches).groups:
                found.update(dict.fromkeys(group.payloads(), group.accepted_micros // 1000))
    return found


@pytest.mark.parametrize("transport", ["grpc", "zmq"])
def test_the_time_of_sending_stays_with_a_message(transport: str) -> None:
    """The sending time stays the same over two hops, for every consumer, and after a move of the task."""
    sent: dict[bytes, tuple[int, int]] = {}
    with WorkerProcesses(2, TOPOLOGY, flags=[f"--transport={transport}", "--drain-seconds=0.5"]) as workers:
        near, far = workers.endpoints
        workers.assign({0: [], 1: [TASK]})
        with client_of(near.address) as client:
            for number in range(5):
                payload, before = b"%d" % number, now()
                deliver(client, TASK, payload)
                sent[payload] = before, now()
                eventually(lambda before=before: now() > before + 30)  # type: ignore[misc]
        eventually(lambda: queued(far, TASK) == 5)
        read = times(far, 5)
        assert {payload: low <= read[payload] <= high for payload, (low, high) in sent.items()} == (
            dict.fromkeys(sent, True)
        )
        assert times(far, 5) == read
        assert acknowledged(far, TASK) == 0

        workers.assign({0: [TASK], 1: []})
        eventually(lambda: queued(near, TASK) == 5, timeout=20)
        assert times(near, 5) == read
