"""The blocking and the asyncio client with two real workers: delivery, limits, and named errors."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import math
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Self
from weakref import WeakSet

import pytest
from helpers.logged import logged
from helpers.program import in_threads
from helpers.served import answering
from helpers.topology import (
    TOPOLOGY,
    Message,
    Pair,
    acknowledged,
    gather,
    messages_of,
    metric,
    numbered,
    numbers,
    queued,
)
from helpers.traffic import client_of, deliver

from tuplewire import Client, TaskMessage, TaskMessageBatch, aio
from tuplewire.connection.receiver import Receiver
from tuplewire.errors import (
    BufferFullError,
    ClosedError,
    FlushTimeoutError,
    RefusedMessagesError,
    SupersededError,
    TaskNotLocalError,
    TuplewireError,
    UnreachableError,
    WaitTimeoutError,
    WrongTopologyError,
)
from tuplewire_service.testing import eventually
from tuplewire_service.testing.fault_proxy import FaultProxy

Make = Callable[..., Any]


class Awaited(AsyncIterator[TaskMessageBatch]):
    """A blocking client or subscription with the methods of the asyncio one. Each call runs in a thread."""

    def __init__(self, blocking: Any) -> None:
        self._blocking = blocking

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._blocking, name)
        waits = name in {"send", "flush", "close"}
        return functools.partial(asyncio.to_thread, attribute) if waits else attribute

    def recv(self, *arguments: Any, **more: Any) -> Awaited:
        """Subscribe to tasks."""
        return Awaited(self._blocking.recv(*arguments, **more))

    async def __anext__(self) -> TaskMessageBatch:
        return await asyncio.to_thread(next, self._blocking)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.to_thread(self._blocking.__exit__, *error)


@pytest.fixture(params=["blocking", "asyncio"])
def make(request: pytest.FixtureRequest) -> Make:
    """Return a function that creates a client of either kind, with the methods of the asyncio client."""
    kinds: dict[str, Make] = {
        "blocking": lambda *arguments, **settings: Awaited(Client(*arguments, **settings)),
        "asyncio": aio.Client,
    }
    return functools.partial(kinds[request.param], topology=TOPOLOGY)


async def test_send_takes_every_form(make: Make, pair: Pair, task: int) -> None:
    """Messages in every form arrive, with key and headers; an empty list is allowed."""
    headed = TaskMessage(task, b"0", key=b"k", headers=[("trace", b"1"), ("trace", b"")])
    async with make(pair.near.address, source=5) as client:
        await client.send(task, b"0", key=b"k", headers=headed.headers)
        assert client.try_send(task, b"0", key=b"k", headers=headed.headers)
        await client.send(TaskMessage(task, b"%d" % number) for number in (1, 2))
        await client.send(TaskMessageBatch.from_columns([task] * 2, [b"3", b"4"]))
        assert client.try_send(task, b"5")
        await client.send([])
        await client.flush(10)
        assert client.ledger().acknowledged == queued(pair.near, task) == 7
        found: list[TaskMessage] = []
        async with client.recv([task], timeout=10) as subscription:
            while len(found) < 7:
                found += await anext(subscription)
        assert found == [headed, headed, *(TaskMessage(task, b"%d" % number) for number in range(1, 6))]


async def test_unknown_task_is_refused_by_name_and_counted(make: Make, pair: Pair, task: int) -> None:
    """Messages to an unknown task are refused by name at flush() and counted; other messages arrive."""
    sample = 'tuplewire_refused_messages_total{code="UNKNOWN_TASK"}'
    before = metric(pair.near, sample)
    async with make(pair.near.address) as client:
        await client.send(TaskMessageBatch.from_columns([task, 999_999, task], [b"0", b"lost", b"1"]))
        with pytest.raises(RefusedMessagesError, match="UNKNOWN_TASK: 1 message to task 999999"):
            await client.flush(10)
        await client.flush(10)  # reported only once
        assert client.ledger().balanced
        assert (client.ledger().acknowledged, client.ledger().dropped["unknown_task"]) == (2, 1)
        await client.send(task, b"2")
        await client.flush(10)
        assert queued(pair.near, task) == 3
    assert metric(pair.near, sample) == before + 1


async def test_wrong_topology_ends_the_session_by_name(make: Make, pair: Pair) -> None:
    """A sender and a consumer with another topology fail permanently with WrongTopologyError."""
    with FaultProxy(pair.near.address) as proxy:
        proxy.black_hole()  # the refusal must not precede the send
        client = make(proxy.address, topology="other")
        await client.send(0, b"x")
        proxy.resume()
        with pytest.raises(WrongTopologyError, match=r"serves topology 'test'.*'other'"):
            await client.flush(10)
        with pytest.raises(WrongTopologyError):
            await client.send(0, b"y")
        with pytest.raises(WrongTopologyError):
            await anext(client.recv([0], timeout=10))
        await client.close(0)
    assert client.ledger().balanced
    assert client.ledger().dropped["refused"] == 1


@pytest.mark.parametrize(("address", "reason"), [("", "refused"), ("unix:///nowhere/w.sock", "No such file")])
async def test_nobody_there_is_named(make: Make, nobody: str, address: str, reason: str) -> None:
    """If the worker is unreachable, flush() and a send to a full buffer report the address and the cause."""
    address = address or nobody
    client = make(address, max_pending_messages=1)
    await client.send(0, b"x")
    why = ""
    while not re.search(f"1 message .* after 0.1 s; {address} .*{reason}", why):
        with pytest.raises(FlushTimeoutError) as caught:
            await client.flush(0.1)
        why = str(caught.value)
    assert client.ledger().pending == 1
    assert not client.try_send(0, b"y")
    with pytest.raises(BufferFullError, match=f"1 message .*{address} is not connected: .*{reason}"):
        await client.send(0, b"y", timeout=0.1)
    with pytest.raises(FlushTimeoutError, match=f"1 message .* after 0.1 s; {address} .*dropped"):
        await client.close(0.1)
    await client.close()
    assert client.ledger().dropped["closed"] == 1


async def test_waits_end_by_default(make: Make, nobody: str) -> None:
    """Waits fail after the configured seconds; close() and the end of a block do not wait twice."""
    client = make(nobody, flush_timeout_seconds=0.4, connect_timeout_seconds=0.4)
    await client.send(1, b"x")
    with pytest.raises(FlushTimeoutError, match=f"after 0.4 s; {nobody} is not connected: [^:]*; start a"):
        await client.flush()
    async with client.recv(1) as batches:
        for _ in range(2):
            with pytest.raises(UnreachableError, match=f"no worker at {nobody} for 0.4 s: .*refused"):
                await anext(batches)
    with pytest.raises(FlushTimeoutError, match="dropped"):
        await client.close()
    await client.close()
    assert client.ledger().dropped["closed"] == 1
    with Client(nobody, connect_timeout_seconds=1) as each, pytest.raises(UnreachableError, match="for 1 s"):
        list(each.recv(1).messages(quiet=0))
    client = make(nobody, flush_timeout_seconds=0.4)
    with pytest.raises(FlushTimeoutError, match=f"after 0.4 s; {nobody} is not") as flushed:
        async with client:
            await client.send(1, b"x")
    assert flushed.value.__context__ is None
    assert client.ledger().dropped["closed"] == 1


async def test_close_is_idempotent_and_final(make: Make, pair: Pair) -> None:
    """A second close() has no effect; send() and recv() then raise ClosedError; the ledger stays readable."""
    client = make(pair.near.address)
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
    assert (client.ledger().accepted, client.ledger().acknowledged) == (1, 1)


async def test_closing_wakes_a_blocked_sender(make: Make, nobody: str) -> None:
    """A send that waits for space gets ClosedError when the client is closed."""
    client = make(nobody, max_pending_messages=1)
    await client.send(0, b"x")
    waiting = asyncio.create_task(client.send(0, b"y"))
    await asyncio.sleep(0)
    with pytest.raises(FlushTimeoutError):
        await client.close(0.1)
    with pytest.raises(ClosedError):
        async with asyncio.timeout(5):
            await waiting


async def test_recv_times_out_and_goes_on(make: Make, pair: Pair, task: int) -> None:
    """An idle task raises WaitTimeoutError, which is a TimeoutError, and the subscription remains usable."""
    async with make(pair.near.address) as client, client.recv([task], timeout=0.3) as subscription:
        with pytest.raises(WaitTimeoutError, match=rf"no message through .* to task {task} for 0\.3 s"):
            await anext(subscription)
        await client.send(task, b"0")
        await client.flush(10)
        assert numbers(await gather(subscription, 1)) == [0]


async def test_recv_of_a_task_elsewhere_names_the_owner(make: Make, pair: Pair) -> None:
    """A subscription at the wrong worker fails with the address of the task's owner."""
    async with make(pair.near.address) as client:
        with pytest.raises(TaskNotLocalError, match=pair.far.address) as caught:
            await anext(client.recv([pair.far_task()], timeout=10, follow=False))
        assert (caught.value.owner, caught.value.worker_id) == (pair.far.address, pair.far.worker_id)


async def test_newer_subscriber_takes_the_task_over(make: Make, pair: Pair, task: int) -> None:
    """The older subscriber gets SupersededError; the newer gets unacknowledged messages, marked, in order."""
    async with make(pair.near.address) as older, make(pair.near.address) as newer:
        await older.send(numbered(task, range(10)))
        first = older.recv([task], timeout=10)
        assert numbers(await gather(first, 10)) == list(range(10))
        await asyncio.to_thread(eventually, lambda: acknowledged(pair.near, task) == 10)
        await older.send(numbered(task, range(10, 30), source=4))
        assert len(await anext(first)) == 20
        await older.send(numbered(task, range(30, 40)))
        await older.flush(10)
        async with newer.recv([task], timeout=10) as second:
            taken = await anext(second)
            group = taken.groups[0]
            assert (group.source, len(group), group.redelivered) == (4, 20, True)
            got = messages_of(taken)
            got += await gather(second, 30 - len(got))
            assert [int(payload) for _, payload in got] == list(range(10, 40))
            with pytest.raises(SupersededError):
                await gather(first, 1000)  # messages that had arrived may come first


def test_address_and_topology_come_from_the_environment(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """TUPLEWIRE_ADDRESS and TUPLEWIRE_TOPOLOGY are the defaults of the arguments."""
    monkeypatch.setenv("TUPLEWIRE_ADDRESS", pair.near.unix_address)
    monkeypatch.setenv("TUPLEWIRE_TOPOLOGY", TOPOLOGY)
    with Client() as client:
        deliver(client, pair.near_task(), b"x")


def comes_to_say(attempt: Callable[[], object], error: type[TuplewireError], words: str) -> None:
    """Retry until this error has these words; on a busy machine the first attempts may not know the cause."""

    def said() -> str:
        with pytest.raises(error) as caught:
            attempt()
        return str(caught.value)

    eventually(lambda: re.search(words, said()), what=words)


def test_server_that_is_no_worker_is_named_at_flush() -> None:
    """If a gRPC server is not a Tuplewire worker, flush() and recv() report it."""

    def answer(requests: Iterator[bytes], _context: object) -> Iterator[bytes]:
        for _ in requests:
            yield b"\xff\xff this is not ours"

    with answering(answer) as address:
        client = client_of(address)
        client.send(0, b"x")
        words = "does not answer as a Tuplewire worker"
        comes_to_say(lambda: client.flush(0.5), FlushTimeoutError, words)
        comes_to_say(lambda: next(client.recv([0], timeout=1)), UnreachableError, words)
        client.close(0)
    assert client.ledger().balanced


@pytest.mark.parametrize("act", [lambda client: client.send(1, b"x"), lambda client: client.recv([1])])
def test_the_log_says_that_nobody_is_there(
    nobody: str, act: Callable[[Client], object], caplog: pytest.LogCaptureFixture
) -> None:
    """A warning is logged once, with the address and the reason in its text."""
    client = client_of(nobody)
    held = [act(client)]  # a dropped subscription would end
    eventually(lambda: held and logged(caplog, "worker.not_connected"), 10)
    client.close(0)
    (told,) = [each for each in caplog.records if "worker.not_connected" in each.message]
    assert f"worker.not_connected address={nobody} reason=" in told.message
    assert (told.levelname, "Connection refused" in told.message) == ("WARNING", True)


def test_a_client_that_closes_has_lost_nothing(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    """The log reports a closed connection, not a lost one."""
    task = pair.near_task()
    with caplog.at_level("INFO", "tuplewire"), client_of(pair.near.address) as client:
        client.send(task, b"x")
    assert logged(caplog, "connection.ready")
    assert logged(caplog, "connection.closed")
    assert not logged(caplog, "connection.lost")
    assert not logged(caplog, "worker.not_connected")
    with client_of(pair.near.address) as client:
        assert next(client.recv(task)).payloads == [b"x"]


def test_an_error_is_seen_as_it_is(nobody: str) -> None:
    """A block that ends with an error waits briefly for acknowledgements and adds no error of its own."""
    client = client_of(nobody, flush_timeout_seconds=0.1)

    def fail() -> None:
        with client:
            client.send(1, b"x")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert client.ledger().dropped["closed"] == 1


def test_a_quiet_subscription_waits(pair: Pair, task: int, caplog: pytest.LogCaptureFixture) -> None:
    """A subscription that the worker has accepted waits for messages longer than connect_timeout_seconds."""
    caplog.set_level("INFO", "tuplewire")
    with client_of(pair.near.address, connect_timeout_seconds=0.3) as client, client.recv(task) as batches:
        eventually(lambda: logged(caplog, "subscription.ready"), 20)
        with in_threads(lambda: next(batches).payloads) as (reading,):
            began = time.monotonic()
            eventually(lambda: time.monotonic() - began > 0.7, 10)
            assert not reading.done()
            client.send(task, b"at last")
        assert reading.result() == [b"at last"]


def test_waits_may_last_for_ever(pair: Pair) -> None:
    """math.inf removes the time limit, as a setting and as the timeout of one subscription."""
    task, near = pair.near_task(), pair.near.address
    with client_of(near, flush_timeout_seconds=math.inf, connect_timeout_seconds=math.inf) as client:
        deliver(client, task, b"x")
        assert next(client.recv(task, timeout=math.inf)).payloads == [b"x"]


aio_client_of = functools.partial(aio.Client, topology=TOPOLOGY)


async def test_a_client_keeps_no_subscription_that_was_closed(pair: Pair, task: int) -> None:
    """A closed subscription does not stay in memory with its client."""
    async with aio_client_of(pair.near.address) as client:
        closed: WeakSet[Receiver] = WeakSet()
        for _ in range(20):
            async with client.recv([task]) as subscription:
                closed.add(subscription._receiver)
        del subscription
        await asyncio.sleep(0)  # their last callbacks
        gc.collect()
        assert not closed


async def test_messages_end_by_count_quiet_and_time(pair: Pair, task: int) -> None:
    """However an iteration ends, it acknowledges each message only after the loop body has finished."""

    async def seen(subscription: aio.Subscription, last: bytes = b"", **bounds: Any) -> list[bytes]:
        found = []
        async for message in subscription.messages(**bounds):
            found.append(message.message)
            if message.message == last:
                break
        return found

    async with aio_client_of(pair.near.address) as client:
        await client.send(TaskMessageBatch.from_columns(task, [b"%d" % n for n in range(10)]))
        await client.flush(10)
        async with client.recv([task]) as subscription:
            assert await seen(subscription, count=3) == [b"0", b"1", b"2"]
        async with client.recv([task]) as subscription:
            assert await seen(subscription, last=b"5") == [b"3", b"4", b"5"]  # 5 is not acknowledged
        async with client.recv([task], timeout=0.5) as subscription:
            assert await seen(subscription, last=b"7") == [b"5", b"6", b"7"]
            batch = await anext(subscription)  # the rest; the end of the block does not acknowledge it
            assert list(batch.payloads) == [b"7", b"8", b"9"]
        async with client.recv([task]) as subscription:
            assert await seen(subscription, quiet=0.5) == [b"7", b"8", b"9"]
        async with client.recv([task]) as subscription:
            assert await seen(subscription, seconds=0.3) == []
        await client.send(task, b"10")
        await client.flush(10)
        async with client.recv([task]) as subscription:
            await seen(subscription, last=b"10", seconds=0)  # perhaps before the message arrives
        async with client.recv([task]) as subscription:
            assert await seen(subscription, quiet=0) == [b"10"]


async def test_cancelled_recv_loses_nothing(pair: Pair, task: int) -> None:
    """Cancelling the wait for the next batch repeatedly loses no messages."""
    async with aio_client_of(pair.near.address) as client, client.recv([task], timeout=10) as subscription:
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
    client = aio_client_of(nobody, max_pending_messages=10)
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


async def test_a_flush_reports_messages_that_close_drops(nobody: str) -> None:
    """A flush during close(0), or after it, raises ClosedError, as the messages are not acknowledged."""
    client, other = client_of(nobody), aio_client_of(nobody)
    client.send(numbered(0, range(2)))
    await other.send(numbered(0, range(2)))
    during = [asyncio.create_task(each) for each in (asyncio.to_thread(client.flush), other.flush())]
    await asyncio.sleep(0.1)
    await asyncio.to_thread(client.close, 0)
    await other.close(0)
    for flush in (*during, asyncio.to_thread(client.flush), other.flush()):
        with pytest.raises(ClosedError, match="2 messages not acknowledged, and dropped"):
            await flush


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_programs_that_end_their_loops_leave_no_error(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    """Dropping clients and closing the event loop, repeatedly, logs no asyncio errors."""
    task, other = pair.near_task(), pair.near_task()

    async def program() -> None:
        client = aio_client_of(pair.near.address)
        await client.send(numbered(task, range(10)))
        await client.flush(20)
        with contextlib.suppress(TimeoutError, UnreachableError):
            await anext(client.recv([other], timeout=0.01))

    with client_of(pair.near.address) as beside:
        for _ in range(20):
            asyncio.run(program())
        deliver(beside, task, b"goes on")
    assert [record for record in caplog.records if record.name == "asyncio"] == []
