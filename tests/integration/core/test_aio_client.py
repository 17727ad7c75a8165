"""The asyncio client on the caller's event loop, with two real workers."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
from typing import Any
from weakref import WeakSet

import pytest
from helpers.topology import TOPOLOGY, Message, Pair, messages_of, numbered, numbers
from helpers.traffic import deliver

from tuplewire import Client as BlockingClient
from tuplewire import TaskMessageBatch
from tuplewire.aio import Client, Subscription
from tuplewire.connection.receiver import Receiver
from tuplewire.errors import UnreachableError

client_of = functools.partial(Client, topology=TOPOLOGY)


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
