"""Messages sent one at a time: the ledger after a send, the limits, and the order with batches."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from helpers.topology import TOPOLOGY, Pair, collect
from helpers.traffic import client_of

from tuplewire import Client, TaskMessageBatch, aio
from tuplewire.errors import InvalidTaskError, MessageError, MessageTooLargeError, TuplewireError

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

    running = [threading.Thread(target=fill) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert room <= client.ledger().pending <= room + threads - 1
    assert not client.try_send(3, payload)
    client.close(0)
    assert client.ledger().balanced


def test_batches_count_for_messages_alone(nobody: str) -> None:
    """A batch that the event loop has not processed yet counts towards the limit."""
    for _ in range(20):
        client = client_of(nobody, max_pending_messages=100)
        client.send(1, b"x")
        client.send(TaskMessageBatch.from_columns(1, [b"x"] * 98))
        assert client.try_send(1, b"x")
        assert not client.try_send(1, b"x")
        client.close(0)


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

    with client_of(pair.near.address) as client, client_of(pair.far.address) as consumer:
        running = [threading.Thread(target=send, args=(client, thread)) for thread in range(threads)]
        for thread in running:
            thread.start()
        received = collect(consumer.recv([task], timeout=30), threads * each)
        for thread in running:
            thread.join()
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


def test_a_payload_is_as_it_was_when_it_was_sent(pair: Pair) -> None:
    """A payload that is not of type bytes is copied when it is sent."""
    task = pair.near_task()
    changing = bytearray(b"before")
    with client_of(pair.near.address) as client:
        client.send(task, changing)  # type: ignore[call-overload]
        changing[:] = b"after!"
        client.send(task, memoryview(b"a view"))  # type: ignore[call-overload]
        client.flush(10)
        received = collect(client.recv([task], timeout=10), 2)
    assert [payload for _, payload in received] == [b"before", b"a view"]
