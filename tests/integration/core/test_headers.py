"""Keys and headers stay with their messages across workers, reconnects, moves and drains."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from helpers.topology import TOPOLOGY, assign, balances, has_ended, one_worker, queued, ready, two_workers
from helpers.traffic import client_of, deliver

from tuplewire import TaskGroup, TaskMessage, TaskMessageBatch, aio
from tuplewire.errors import MalformedError, MessageError, MessageTooLargeError
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


@pytest.mark.parametrize("transport", ["grpc", "zmq"])
def test_they_follow_a_task_that_moves_from_a_worker_that_drains(tmp_path: Path, transport: str) -> None:
    """Headers stay with queued, delivered and moved messages, and with messages of a draining worker."""
    flags = (f"--transport={transport}", "--drain-seconds=60")
    messages = messages_to(1, 400)
    with one_worker("a", *flags, directory=tmp_path) as a, one_worker("b", *flags, directory=tmp_path) as b:
        assign((a, b), 1, {a: [1], b: []})
        ready(a, b)
        with client_of(b.address) as sender, client_of(a.address) as first:
            deliver(sender, messages[:200])
            eventually(lambda: queued(a, 1) == 200)
            with first.recv([1], timeout=30) as subscription:
                seen: list[TaskMessage] = []
                while len(seen) < 100:
                    seen += next(subscription)
            assign((b, a), 2, {a: [], b: [1]})
            sender.send(messages[200:])
            os.kill(a.process_id, signal.SIGTERM)
            with client_of(b.address) as second, second.recv([1], timeout=30) as subscription:
                came: list[TaskMessage] = []
                while not came or came[-1] != messages[-1]:
                    came += next(subscription)
                subscription.acknowledge()
            assert came == messages[-len(came) :]
            assert seen == messages[: len(seen)]
            assert len(seen) + len(came) >= len(messages)
            sender.flush(30)
        eventually(lambda: has_ended(a), 50, "drained")


def test_what_is_wrong_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    """A wrong key or oversize headers are refused before anything is sent, and the client stays usable."""
    with one_worker("a", directory=tmp_path, tasks=[1]) as a, client_of(a.address) as client:
        with pytest.raises(MessageError, match="a key is bytes, not str; encode it first"):
            client.send(1, b"x", key="k")  # type: ignore[call-overload]
        with pytest.raises(MessageTooLargeError):
            client.send(1, b"x", headers=[("large", bytes(2**20))])
        with pytest.raises(TypeError, match="in a batch, each TaskMessage has its own"):
            client.send(TaskMessageBatch(), key=b"k")  # type: ignore[call-overload]
        deliver(client, 1, b"x", key=b"k")
        assert client.ledger().accepted == 1
        with client.recv([1], timeout=10) as subscription:
            assert next(subscription).keys == [b"k"]


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
