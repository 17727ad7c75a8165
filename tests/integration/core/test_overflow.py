"""Full queues and buffers: the policy `drop_oldest`, the limits, and the ledger after a send."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from helpers import eventually
from helpers.program import in_threads
from helpers.topology import TOPOLOGY, Pair, collect, numbered, numbers, queued
from helpers.traffic import client_of, deliver, take

from tuplewire import Client, TaskMessageBatch, aio
from tuplewire.errors import (
    BufferFullError,
    InvalidTaskError,
    MessageError,
    MessageTooLargeError,
    TuplewireError,
)
from tuplewire.processes.worker_processes import Endpoint

QUEUE = 1000
"""Number of messages that the worker queues for a task without a consumer."""
FLAGS = (f"--receive-queue-messages={QUEUE}",)
PENDING = 4000
"""Number of messages that the client keeps pending."""
SENT = 50_000

DROPPING: dict[str, Any] = {"topology": TOPOLOGY, "overflow": "drop_oldest", "max_pending_messages": PENDING}


def producer_of(address: str, **settings: Any) -> Client:
    """Return a client that drops its oldest messages if it is full."""
    return Client(address, **{**DROPPING, **settings})


@pytest.mark.parametrize("where", ["near", "far"])
def test_a_producer_at_full_speed_never_waits(pair: Pair, where: str) -> None:
    """With a stopped consumer, every send is accepted immediately, and a later flush succeeds."""
    task = pair.near_task() if where == "near" else pair.far_task()
    owner: Endpoint = getattr(pair, where)
    with producer_of(pair.near.address) as producer:
        deliver(producer, numbered(task, range(QUEUE)))
        eventually(lambda: queued(owner, task) == QUEUE)
        for start in range(QUEUE, SENT, 100):
            producer.send(numbered(task, range(start, start + 100)), timeout=0)
        left = SENT - producer.ledger().dropped["overflow"]
        assert left == PENDING + QUEUE
        arrived = numbers(take(owner, task, left))
        producer.flush(10)
        assert arrived == [*range(QUEUE), *range(SENT - PENDING, SENT)]
        balance = producer.ledger()
        assert balance.balanced
        assert (balance.accepted, balance.acknowledged, balance.pending) == (SENT, left, 0)
        assert sum(balance.dropped.values()) == balance.dropped["overflow"] == SENT - left


def test_a_stopped_task_costs_the_others_nothing(pair: Pair) -> None:
    """A stopped task at its limit drops only its own messages; all messages of another task arrive."""
    stopped, flowing = pair.near_task(), pair.near_task()
    with producer_of(
        pair.near.address, max_pending_messages=10 * PENDING, max_pending_task_messages=PENDING
    ) as producer:
        for start in range(0, SENT, 1000):
            producer.send(numbered(flowing, range(start // 20, start // 20 + 50)), timeout=0)
            producer.send(numbered(stopped, range(start, start + 1000)), timeout=0)
        left = SENT - producer.ledger().dropped["overflow"]
        flowed = numbers(take(pair.near, flowing, SENT // 20))
        arrived = numbers(take(pair.near, stopped, left))
        producer.flush(10)
        assert flowed == list(range(SENT // 20))
        assert arrived[-(PENDING - QUEUE) :] == list(range(SENT - (PENDING - QUEUE), SENT))
        assert producer.ledger().balanced
        assert producer.ledger().accepted == SENT + SENT // 20


def test_what_the_worker_may_have_is_waited_for(pair: Pair, task: int) -> None:
    """In mode `processed`, messages at the worker count towards the limit and are never dropped."""
    with producer_of(pair.near.address, ack_mode="processed", max_pending_messages=QUEUE) as producer:
        producer.send(numbered(task, range(QUEUE)))
        eventually(lambda: queued(pair.near, task) == QUEUE)
        assert not producer.try_send(task, b"1000")
        with pytest.raises(BufferFullError, match=f"no space for 0.1 s: {QUEUE:,} messages"):
            producer.send(task, b"1000", timeout=0.1)
        with Client(pair.near.address, topology=TOPOLOGY) as consumer:
            subscription = consumer.recv([task], timeout=10)
            assert numbers(collect(subscription, QUEUE)) == list(range(QUEUE))
            producer.send(task, b"1000", timeout=10)
            assert numbers(collect(subscription, 1)) == [QUEUE]
        producer.flush(10)
        assert producer.ledger().dropped["overflow"] == 0


MIB = 1 << 20
LARGE = bytes(10_000)
"""Larger than a message that is submitted without being counted first."""


def test_a_message_is_in_the_ledger_when_send_returns(nobody: str) -> None:
    """Small messages, large messages and batches are accepted and pending in the ledger when send returns."""
    client = client_of(nobody)
    sent = 0
    for number in range(1000):
        if number % 10 == 7:
            client.send(TaskMessageBatch.from_columns([1, 2, 1], [b"x", LARGE, b"y"]))
            sent += 3
        elif number % 3:
            client.send(number % 4, b"%d" % number)
            sent += 1
        else:
            assert client.try_send(number % 4, LARGE)
            sent += 1
        ledger = client.ledger()
        assert (ledger.accepted, ledger.pending) == (sent, sent)
    client.close(0)
    assert client.ledger().dropped["closed"] == sent


@pytest.mark.parametrize(
    ("settings", "payload", "room"),
    [
        ({"max_pending_messages": 5000}, b"x", 5000),
        ({"max_pending_task_messages": 5000}, b"x", 5000),
        ({"max_pending_bytes": 2 * MIB}, bytes(1000), 2 * MIB // 1000),
        ({"max_pending_bytes": 2 * MIB}, LARGE, 2 * MIB // len(LARGE)),
    ],
    ids=["messages", "task", "bytes", "large"],
)
@pytest.mark.parametrize("threads", [1, 8])
def test_bounds_hold(nobody: str, settings: dict[str, Any], payload: bytes, room: int, threads: int) -> None:
    """One thread fills the limits exactly; each further thread may exceed them by one small message."""
    client = client_of(nobody, overflow="fail", **settings)

    def fill() -> None:
        while client.try_send(3, payload):
            pass

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda _: fill(), range(threads)))
    assert room <= client.ledger().pending <= room + threads - 1
    assert not client.try_send(3, payload)
    client.close(0)
    assert client.ledger().balanced


def test_order_per_thread_beside_batches(pair: Pair) -> None:
    """Threads share a client and send small messages, large messages and batches; each keeps its order."""
    task = pair.far_task()
    threads, each = 4, 3000

    def send(client: Client, thread: int) -> None:
        number = 0
        while number < each:
            count = min(each - number, 3 if number % 5 == 0 else 1)
            payloads = [b"%d %d " % (thread, number + more) for more in range(count)]
            if count > 1:
                client.send(TaskMessageBatch.from_columns(task, payloads))
            else:
                client.send(task, payloads[0] + (LARGE if number % 97 == 0 else b""))
            number += count

    with client_of(pair.near.address) as client:
        with in_threads(*(partial(send, client, thread) for thread in range(threads))):
            received = take(pair.far, task, threads * each)
        client.flush(10)
        assert client.ledger().acknowledged == threads * each
    in_order: dict[bytes, list[int]] = {}
    for _, payload in received:
        sender, number, _ = payload.split(b" ")
        in_order.setdefault(sender, []).append(int(number))
    assert len(in_order) == threads
    assert all(numbers == list(range(each)) for numbers in in_order.values())


WRONG: list[tuple[Any, Any, type[TuplewireError]]] = [
    (-1, b"x", InvalidTaskError),
    (1 << 31, b"x", InvalidTaskError),
    (1, "text", MessageError),
    (1, bytes(MIB + 1), MessageTooLargeError),
]


@pytest.mark.parametrize(("task", "payload", "error"), WRONG)
async def test_a_wrong_message_is_an_error_where_it_is_sent(
    nobody: str, task: Any, payload: Any, error: type[TuplewireError]
) -> None:
    """An invalid message is not accepted, and valid messages still are."""
    client, other = client_of(nobody, source=5), aio.Client(nobody, topology=TOPOLOGY)
    for send in (client.send, client.try_send, other.try_send):
        send(1, b"x")
        with pytest.raises(error):
            send(task, payload)
    with pytest.raises(error):
        await other.send(task, payload)
    assert (client.ledger().accepted, other.ledger().accepted) == (2, 1)
    client.close(0)
    await other.close(0)


def test_a_payload_is_as_it_was_when_it_was_sent(pair: Pair, task: int) -> None:
    """A payload that is not of type bytes is copied when it is sent."""
    changing = bytearray(b"before")
    with client_of(pair.near.address) as client:
        client.send(task, changing)  # type: ignore[call-overload]
        changing[:] = b"after!"
        client.send(task, memoryview(b"a view"))  # type: ignore[call-overload]
        client.flush(10)
        received = collect(client.recv([task], timeout=10), 2)
    assert [payload for _, payload in received] == [b"before", b"a view"]
