"""The asyncio client on the caller's event loop, with two real workers."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import re
from typing import Any
from weakref import WeakSet

import pytest
from helpers.topology import TOPOLOGY, Message, Pair, collect, messages_of, numbered, numbers, queued
from helpers.traffic import deliver

from tuplewire import Client as BlockingClient
from tuplewire import TaskMessage, TaskMessageBatch
from tuplewire.aio import Client, Subscription
from tuplewire.connection.receiver import Receiver
from tuplewire.errors import (
    BufferFullError,
    ClosedError,
    FlushTimeoutError,
    RefusedMessagesError,
    SupersededError,
    TaskNotLocalError,
    UnreachableError,
    WrongTopologyError,
)
from tuplewire_service.testing.fault_proxy import FaultProxy

client_of = functools.partial(Client, topology=TOPOLOGY)


async def gather(subscription: Subscription, how_many: int) -> list[Message]:
    """Take exactly `how_many` messages and acknowledge them."""
    messages: list[Message] = []
    while len(messages) < how_many:
        messages += messages_of(await anext(subscription))
    subscription.acknowledge()
    assert len(messages) == how_many
    return messages


async def test_a_client_keeps_no_subscription_that_was_closed(pair: Pair) -> None:
    """A closed subscription does not stay in memory with its client."""
    task = pair.near_task()
    async with client_of(pair.near.address) as client:
        closed: WeakSet[Receiver] = WeakSet()
        for _ in range(20):
            async with client.recv([task]) as subscription:
                closed.add(subscription._receiver)
        del subscription
        await asyncio.sleep(0)  # their last callbacks
        gc.collect()
        assert not closed


async def test_messages_for_a_remote_task_arrive_in_order_per_source(pair: Pair) -> None:
    """Messages from two sources to a task of the other worker arrive in the order of each source."""
    task = pair.far_task()

    async with client_of(pair.near.address) as sender, client_of(pair.far.address) as consumer:
        for start in range(0, 1000, 50):
            for source in (1, 2):
                await sender.send(numbered(task, range(start, start + 50), source))
        await sender.flush(10)
        got = await gather(consumer.recv([task], timeout=10), 2000)
        assert numbers(got, 1) == numbers(got, 2) == list(range(1000))
        assert (sender.ledger().acknowledged, sender.ledger().pending) == (2000, 0)


async def test_send_takes_every_form(pair: Pair) -> None:
    """send() accepts a task id with a payload, TaskMessages and a batch; try_send() accepts a task id."""
    task = pair.near_task()

    async with client_of(pair.near.address, source=5) as client:
        await client.send(task, b"0")
        await client.send([TaskMessage(task, b"1")])
        await client.send(TaskMessageBatch.from_columns([task], [b"2"]))
        assert client.try_send(task, b"3")
        await client.send([])
        got = await gather(client.recv([task], timeout=10), 4)
        assert [payload for _, payload in got] == [b"0", b"1", b"2", b"3"]


async def test_messages_end_by_count_quiet_and_time(pair: Pair) -> None:
    """However an iteration ends, it acknowledges each message only after the loop body has finished."""
    task = pair.near_task()

    async def seen(subscription: Subscription, last: bytes = b"", **bounds: Any) -> list[bytes]:
        found = []
        async for message in subscription.messages(**bounds):
            found.append(message.message)
            if message.message == last:
                break
        return found

    async with client_of(pair.near.address) as client:
        await client.send(TaskMessageBatch.from_columns(task, [b"%d" % n for n in range(10)]))
        await client.flush(10)
        async with client.recv([task]) as subscription:
            assert await seen(subscription, count=3) == [b"0", b"1", b"2"]
        async with client.recv([task]) as subscription:
            assert await seen(subscription, last=b"5") == [b"3", b"4", b"5"]  # 5 is not acknowledged
        async with client.recv([task], timeout=0.5) as subscription:
            assert await seen(subscription, last=b"7") == [b"5", b"6", b"7"]
            with pytest.raises(TimeoutError):
                await anext(subscription)  # the next subscriber gets the rest
        async with client.recv([task]) as subscription:
            assert await seen(subscription, quiet=0.5) == [b"7", b"8", b"9"]
        async with client.recv([task]) as subscription:
            assert await seen(subscription, seconds=0.3) == []


async def test_unknown_task_is_refused_by_name(pair: Pair) -> None:
    """Messages to an unknown task are refused by name at flush(); the other messages arrive."""
    task = pair.near_task()

    async with client_of(pair.near.address) as client:
        await client.send(TaskMessageBatch.from_columns([task, 999_999], [b"0", b"lost"]))
        with pytest.raises(RefusedMessagesError, match="UNKNOWN_TASK: 1 messages to task 999999"):
            await client.flush(10)
        assert client.ledger().dropped["unknown_task"] == client.ledger().acknowledged == 1


async def test_unix_socket(pair: Pair) -> None:
    """A Unix socket works in the same way as TCP."""
    task = pair.near_task()

    async with client_of(pair.near.unix_address) as client:
        await client.send(numbered(task, range(10)))
        assert numbers(await gather(client.recv([task], timeout=10), 10)) == list(range(10))


async def test_wrong_topology_ends_the_session_by_name(pair: Pair) -> None:
    """A sender and a consumer with another topology fail permanently with WrongTopologyError."""
    with FaultProxy(pair.near.address) as proxy:
        proxy.black_hole()  # the refusal must not precede the send
        client = Client(proxy.address, topology="other")
        await client.send(0, b"x")
        proxy.resume()
        with pytest.raises(WrongTopologyError):
            await client.flush(10)
        with pytest.raises(WrongTopologyError):
            await client.send(0, b"y")
        with pytest.raises(WrongTopologyError):
            await anext(client.recv([0], timeout=10))
        await client.close()
        assert client.ledger().balanced


async def test_nobody_there_is_named(nobody: str) -> None:
    """flush(), send() with a full buffer, and recv() report the address and the cause."""
    client = client_of(nobody, max_pending_messages=1)
    await client.send(0, b"x")
    why = ""
    while not re.search(f"{nobody} .*refused", why):
        with pytest.raises(FlushTimeoutError) as caught:
            await client.flush(0.1)
        why = str(caught.value)
    assert not client.try_send(0, b"y")
    with pytest.raises(BufferFullError, match=f"{nobody} is not connected"):
        await client.send(0, b"y", timeout=0.1)
    with pytest.raises(UnreachableError, match=f"{nobody} .*refused"):
        await anext(client.recv([0], timeout=5))
    await client.close(0)
    assert client.ledger().dropped["closed"] == 1


async def test_recv_times_out_and_goes_on(pair: Pair) -> None:
    """An idle task raises TimeoutError, and the subscription remains usable."""
    task = pair.near_task()

    async with client_of(pair.near.address) as client, client.recv([task], timeout=0.2) as subscription:
        with pytest.raises(TimeoutError, match="nothing arrived"):
            await anext(subscription)
        await client.send(task, b"0")
        await client.flush(10)
        assert numbers(await gather(subscription, 1)) == [0]


async def test_recv_of_a_task_elsewhere_names_the_owner(pair: Pair) -> None:
    """A subscription at the wrong worker fails with the address of the task's owner."""
    async with client_of(pair.near.address) as client:
        with pytest.raises(TaskNotLocalError, match=pair.far.address):
            await anext(client.recv([pair.far_task()], timeout=10))


async def test_two_clients_in_one_loop_and_a_newer_subscriber(pair: Pair) -> None:
    """A newer subscriber gets the unacknowledged messages, marked redelivered; the older gets an error."""
    task = pair.near_task()

    async with client_of(pair.near.address) as older, client_of(pair.near.address) as newer:
        await older.send(numbered(task, range(20)))
        first = older.recv([task], timeout=10)
        assert len(await anext(first)) == 20
        second = newer.recv([task], timeout=10)
        taken = await anext(second)
        assert [group.redelivered for group in taken.groups] == [True]
        assert numbers(messages_of(taken)) == list(range(20))
        with pytest.raises(SupersededError):
            await anext(first)


async def test_many_clients_in_one_loop(pair: Pair) -> None:
    """Twenty clients on one loop send at the same time; the order of each client holds over two hops."""
    task = pair.far_task()

    async def send(source: int) -> None:
        async with client_of(pair.near.address, source=source) as client:
            for number in range(50):
                await client.send(task, b"%d" % number)

    async with client_of(pair.far.address) as consumer, asyncio.TaskGroup() as senders:
        for source in range(20):
            senders.create_task(send(source))
        got = await gather(consumer.recv([task], timeout=10), 1000)
    assert all(numbers(got, source) == list(range(50)) for source in range(20))


async def test_cancelled_recv_loses_nothing(pair: Pair) -> None:
    """Cancelling the wait for the next batch repeatedly loses no messages."""
    task = pair.near_task()

    async with client_of(pair.near.address) as client, client.recv([task], timeout=10) as subscription:
        got: list[Message] = []
        for number in range(50):
            await client.send(task, b"%d" % number)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.001):
                    got += messages_of(await anext(subscription))
        while len(got) < 50:
            got += messages_of(await anext(subscription))
        assert numbers(got) == list(range(50))


async def test_overflow_fail_raises_at_once(nobody: str) -> None:
    """With overflow="fail", send() raises immediately if the buffer is full."""
    client = client_of(nobody, max_pending_messages=1, overflow="fail")
    await client.send(0, b"x")
    with pytest.raises(BufferFullError, match=f"no room now: 1 messages .*{nobody} is not connected"):
        await client.send(0, b"y")
    await client.close(0)


async def test_cancelled_send_is_all_or_nothing(nobody: str) -> None:
    """A send that is cancelled while it waits for space sends nothing; flush() can be cancelled, too."""
    client = client_of(nobody, max_pending_messages=10)
    await client.send(numbered(0, range(8)))
    waiting = asyncio.create_task(client.send(numbered(0, range(5))))
    flushing = asyncio.create_task(client.flush())
    await asyncio.sleep(0)
    for each in (waiting, flushing):
        each.cancel()
        with pytest.raises(asyncio.CancelledError):
            await each
    assert client.ledger().accepted == 8
    await client.send(numbered(0, range(2)), timeout=1)
    assert client.ledger().pending == 10
    await client.close(0)


async def test_close_is_idempotent_and_final(pair: Pair) -> None:
    """A second close() has no effect; send(), try_send() and recv() then raise ClosedError."""
    client = client_of(pair.near.address)
    subscription = client.recv([pair.near_task()], timeout=10)
    await client.send(pair.near_task(), b"x")
    await client.close()
    await client.close()
    with pytest.raises(ClosedError):
        await client.send(0, b"x")
    with pytest.raises(ClosedError):
        client.try_send(0, b"x")
    with pytest.raises(ClosedError):
        client.recv([0])
    with pytest.raises(ClosedError):
        await anext(subscription)
    assert client.ledger().acknowledged == 1


async def test_closing_wakes_whoever_waits(nobody: str) -> None:
    """A coroutine that waits for space gets ClosedError when another coroutine closes the client."""
    client = client_of(nobody, max_pending_messages=1)
    await client.send(0, b"x")
    waiting = asyncio.create_task(client.send(0, b"y"))
    await asyncio.sleep(0)
    with pytest.raises(FlushTimeoutError):
        await client.close(0.1)
    with pytest.raises(ClosedError):
        async with asyncio.timeout(5):
            await waiting


async def test_context_manager_flushes(pair: Pair) -> None:
    """After the block, all messages have arrived."""
    task = pair.near_task()

    async with client_of(pair.near.address) as client:
        await client.send(numbered(task, range(1000)))

    assert queued(pair.near, task) == 1000


def test_beside_the_blocking_client(pair: Pair) -> None:
    """Both clients work in one process at the same time, each on its own loop."""
    task = pair.far_task()

    async def test() -> None:
        async with client_of(pair.near.address, source=1) as client:
            for number in range(200):
                await client.send(task, b"%d" % number)

    with (
        BlockingClient(pair.near.address, topology=TOPOLOGY, source=2) as sender,
        BlockingClient(pair.far.address, topology=TOPOLOGY) as consumer,
    ):
        sender.send(numbered(task, range(200), 2))
        asyncio.run(test())
        got = collect(consumer.recv([task], timeout=10), 400)
    assert numbers(got, 1) == numbers(got, 2) == list(range(200))


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_programs_that_end_their_loops_leave_no_error(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    """Dropping clients and closing the event loop, repeatedly, logs no asyncio errors."""
    task, other = pair.near_task(), pair.near_task()

    async def program() -> None:
        client = client_of(pair.near.address)
        await client.send(numbered(task, range(10)))
        await client.flush(20)
        with contextlib.suppress(TimeoutError, UnreachableError):
            await anext(client.recv([other], timeout=0.01))

    with BlockingClient(pair.near.address, topology=TOPOLOGY) as beside:
        for _ in range(20):
            asyncio.run(program())
        deliver(beside, task, b"goes on")
    assert [record for record in caplog.records if record.name == "asyncio"] == []
