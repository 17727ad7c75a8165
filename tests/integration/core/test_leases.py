"""A sender has a share at a worker while connected, then a resumable session, and then no state."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from helpers.admin import samples
from helpers.hostile import SEND, frame, hello
from helpers.topology import TOPOLOGY, collect, ledger, metric, numbered, one_worker, queued

from tuplewire import Client
from tuplewire.connection import receipts
from tuplewire.errors import FlushTimeoutError
from tuplewire.processes.worker_processes import Endpoint
from tuplewire.wire import messaging_pb2 as pb
from tuplewire_service.testing import eventually

TASK = 1
CONNECTED = 'tuplewire_sessions{state="connected"}'
RESUMABLE = 'tuplewire_sessions{state="resumable"}'
DEAD = 200


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Endpoint]:
    """Run a worker with a thousand tasks."""
    with one_worker("w", directory=tmp_path, tasks=range(1000)) as endpoint:
        yield endpoint
        assert ledger(endpoint).balanced


async def acknowledged(call: Any) -> int:
    """Return the sequence of the next acknowledgement; other responses may arrive before it."""
    while not (response := pb.SendResponse.FromString(await call.read())).HasField("ack"):
        pass
    return int(response.ack.sequence)


async def window_of_a_new_sender(channel: grpc.aio.Channel) -> int:
    """Return the number of messages to a task that a new sender may send; the sender then disconnects."""
    call: Any = channel.stream_stream(SEND)()
    await call.write(hello())
    welcome = pb.SendResponse.FromString(await call.read()).welcome
    await call.write(pb.SendRequest(goodbye=pb.Goodbye()).SerializeToString())
    await call.done_writing()
    while await call.read() is not grpc.aio.EOF:
        pass
    return int(welcome.initial_credit.messages)


async def die(channel: grpc.aio.Channel, messages: int = 0) -> None:
    """Open a session, send some messages, and end without a goodbye."""
    call: Any = channel.stream_stream(SEND)()
    await call.write(hello())
    await call.read()
    if messages:
        await call.write(frame(1, (b"x",) * messages, TASK))
        assert await acknowledged(call) == 1
    call.cancel()


async def test_the_dead_take_no_share(worker: Endpoint) -> None:
    """After many senders end without a goodbye, the next sender has the whole window within seconds."""
    async with grpc.aio.insecure_channel(worker.address) as channel:
        whole = await window_of_a_new_sender(channel)
        await asyncio.gather(*(die(channel) for _ in range(DEAD)))
        await asyncio.to_thread(eventually, lambda: metric(worker, RESUMABLE) == DEAD)
        assert await window_of_a_new_sender(channel) == whole
    assert metric(worker, CONNECTED) == 0
    assert metric(worker, RESUMABLE) == DEAD


async def test_what_the_dead_have_left_is_taken_off_the_queue(tmp_path: Path) -> None:
    """Messages of a disconnected sender use queue space of other senders until they are consumed."""
    with one_worker("w", "--receive-queue-messages=1000", directory=tmp_path, tasks=range(10)) as worker:
        async with grpc.aio.insecure_channel(worker.address) as channel:
            await die(channel, messages=1000)
        eventually(lambda: metric(worker, RESUMABLE) == 1)
        assert queued(worker, TASK) == 1000
        with Client(worker.address, topology=TOPOLOGY) as client:
            client.send(TASK, b"late")
            with pytest.raises(FlushTimeoutError):
                client.flush(0.5)
            with client.recv([TASK], timeout=30) as subscription:
                assert len(collect(subscription, 1001)) == 1001
            client.flush(30)


async def test_a_sender_without_credit_hears_of_a_larger_share(tmp_path: Path) -> None:
    """A sender without credit gets the share of a disconnected sender, even if no message is consumed."""
    with one_worker("w", "--receive-queue-messages=1000", directory=tmp_path, tasks=range(10)) as worker:
        async with grpc.aio.insecure_channel(worker.address) as channel:
            others: list[Any] = [channel.stream_stream(SEND)() for _ in range(2)]
            for other in others:
                await other.write(hello())
                await other.read()
            with Client(worker.address, topology=TOPOLOGY) as client:
                client.send(numbered(TASK, range(1000)))
                await asyncio.to_thread(eventually, lambda: queued(worker, TASK) == 500)
                for other in others:
                    other.cancel()
                await asyncio.to_thread(client.flush, 30)
        assert queued(worker, TASK) == 1000


async def test_a_session_is_forgotten_after_its_time(tmp_path: Path) -> None:
    """A session is removed `resume_seconds` after its sender disconnects; until then, it can resume."""
    with one_worker("w", "--resume-seconds=1", directory=tmp_path, tasks=range(10)) as worker:
        async with grpc.aio.insecure_channel(worker.address) as channel:
            await die(channel)
        assert metric(worker, CONNECTED) == 1
        eventually(lambda: not metric(worker, CONNECTED) and not metric(worker, RESUMABLE))


async def test_a_worker_that_is_gone_is_no_source_any_more(tmp_path: Path) -> None:
    """The received counts of a worker end with its last session, and start again when it returns."""
    received = 'tuplewire_received_messages_total{source="peer"}'
    with one_worker("w", "--resume-seconds=1", directory=tmp_path, tasks=[TASK]) as worker:
        for messages in (3, 2):
            async with grpc.aio.insecure_channel(worker.address) as channel:
                call: Any = channel.stream_stream(SEND)()
                await call.write(hello(kind=pb.PEER_KIND_WORKER, sender_id="peer/1"))
                await call.read()
                await call.write(frame(1, (b"x",) * messages, TASK))
                assert await acknowledged(call) == 1
                call.cancel()
            assert metric(worker, received) == messages
            eventually(lambda: received not in samples(worker.metrics_url))


async def test_a_sender_resumes_after_its_share_has_lapsed(worker: Endpoint) -> None:
    """A sender that returns after its lease resumes at the same position, without loss or duplicates."""
    async with grpc.aio.insecure_channel(worker.address) as channel:
        call: Any = channel.stream_stream(SEND)()
        await call.write(hello(sender_id="away"))
        welcome = pb.SendResponse.FromString(await call.read()).welcome
        await call.write(frame(1, (b"1", b"2"), TASK))
        assert await acknowledged(call) == 1
        call.cancel()
        await asyncio.to_thread(eventually, lambda: metric(worker, RESUMABLE) == 1)
        call = channel.stream_stream(SEND)()
        again = hello(sender_id="away", receiver_incarnation=welcome.receiver_incarnation)
        await call.write(again)
        resumed = pb.SendResponse.FromString(await call.read()).welcome
        assert resumed.receiver_incarnation == welcome.receiver_incarnation
        assert resumed.last_sequence == 1
        assert metric(worker, CONNECTED) == 1
        await call.write(frame(2, (b"3",), TASK))
        assert await acknowledged(call) == 2
        call.cancel()

    assert not metric(worker, RESUMABLE)
    with Client(worker.address, topology=TOPOLOGY).recv([TASK], timeout=30) as subscription:
        assert collect(subscription, 3) == [(None, b"1"), (None, b"2"), (None, b"3")]


def test_programs_that_end_anyhow_leave_no_share(worker: Endpoint) -> None:
    """After an exit without close, os._exit or SIGKILL, the worker reclaims the shares automatically."""
    program = (
        "import os, signal, sys, tuplewire\n"
        f"client = tuplewire.Client({worker.address!r}, topology={TOPOLOGY!r})\n"
        f"client.send({TASK}, b'x'); client.flush(30)\n"
    )
    for end in ("", "os._exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"):
        subprocess.run([sys.executable, "-W", "ignore", "-c", program + end], check=False, timeout=60)
    eventually(lambda: metric(worker, CONNECTED) == 0)
    with Client(worker.address, topology=TOPOLOGY).recv([TASK], timeout=30) as subscription:
        assert len(collect(subscription, 3)) == 3


def flows_of(client: Client) -> int:
    """Return the number of flows that a client's sender has an account for."""
    assert client._sender is not None
    return len(client._sender.buffer.window._flows)


def test_accounts_come_and_go(worker: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sides forget tasks without traffic, and start to count again when messages follow."""
    monkeypatch.setattr(receipts, "CLOSE_UNUSED_SECONDS", 0.2)
    with Client(worker.address, topology=TOPOLOGY) as client, client.recv(range(1000)) as subscription:

        def forgotten() -> bool:
            return not flows_of(client)

        for run in range(3):
            for task in range(1000):
                client.send(task, b"%d" % run)
            received = 0
            while received < 1000:
                received += len(next(subscription))
            subscription.acknowledge()
            client.flush(30)
            eventually(forgotten)
        assert client.ledger().acknowledged == 3000
